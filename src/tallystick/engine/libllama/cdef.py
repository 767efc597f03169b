"""C declarations of the part of the llama.cpp API that the adapter calls.

Facts about one build (see `pins`): enum values, struct layouts and signatures may differ in any
other, which is why the library's digest is checked before anything is called.
"""

DECLARATIONS = """
enum { LLAMA_SPLIT_MODE_NONE = 0, LLAMA_LOAD_MODE_MMAP = 1, LLAMA_LAZY_MODE_OFF = 0,
       LLAMA_FLASH_ATTN_TYPE_DISABLED = 0, GGML_TYPE_F32 = 0, GGML_TYPE_F16 = 1 };

typedef int32_t llama_token;
typedef int32_t llama_pos;
typedef int32_t llama_seq_id;

struct ggml_tensor {
    int32_t type;
    void * buffer;
    int64_t ne[4];
    size_t nb[4];
    int32_t op;
    int32_t op_params[16];
    int32_t flags;
    struct ggml_tensor * src[10];
    struct ggml_tensor * view_src;
    size_t view_offs;
    void * data;
    char name[64];
    void * extra;
    char padding[8];
};

/* The same tensor, its name's first eight bytes read as one number. */
struct tensor_head {
    int32_t type;
    void * buffer;
    int64_t ne[4];
    size_t nb[4];
    int32_t op;
    int32_t op_params[16];
    int32_t flags;
    void * src[10];
    void * view_src;
    size_t view_offs;
    void * data;
    uint64_t name_head;
    char name_rest[56];
    void * extra;
    char padding[8];
};

typedef bool (*eval_callback)(struct ggml_tensor * tensor, bool ask, void * user_data);

struct llama_model_params {
    void * devices;
    void * tensor_buft_overrides;
    int32_t n_gpu_layers;
    int32_t split_mode;
    int32_t load_mode;
    int32_t lazy_mode;
    int32_t main_gpu;
    const float * tensor_split;
    bool (*progress_callback)(float progress, void * user_data);
    void * progress_callback_user_data;
    void * kv_overrides;
    bool vocab_only;
    bool check_tensors;
    bool use_extra_bufts;
    bool no_host;
    bool no_alloc;
    bool load_mtp;
};

struct llama_context_params {
    uint32_t n_ctx;
    uint32_t n_batch;
    uint32_t n_ubatch;
    uint32_t n_seq_max;
    uint32_t n_rs_seq;
    uint32_t n_outputs_max;
    uint32_t n_outputs_max_per_seq;
    int32_t n_threads;
    int32_t n_threads_batch;
    int32_t ctx_type;
    int32_t rope_scaling_type;
    int32_t pooling_type;
    int32_t attention_type;
    int32_t flash_attn_type;
    float rope_freq_base;
    float rope_freq_scale;
    float yarn_ext_factor;
    float yarn_attn_factor;
    float yarn_beta_fast;
    float yarn_beta_slow;
    uint32_t yarn_orig_ctx;
    float defrag_thold;
    eval_callback cb_eval;
    void * cb_eval_user_data;
    int32_t type_k;
    int32_t type_v;
    size_t moe_cache_size;
    bool (*abort_callback)(void * data);
    void * abort_callback_data;
    bool embeddings;
    bool offload_kqv;
    bool no_perf;
    bool op_offload;
    bool swa_full;
    bool kv_unified;
    void * samplers;
    size_t n_samplers;
    void * ctx_other;
};

typedef struct llama_batch {
    int32_t n_tokens;
    llama_token * token;
    float * embd;
    llama_pos * pos;
    int32_t * n_seq_id;
    llama_seq_id ** seq_id;
    int8_t * logits;
} llama_batch;

struct llama_model;
struct llama_context;
struct llama_vocab;

FILE * fdopen(int descriptor, const char * mode);
int fclose(FILE * file);

void llama_backend_init(void);
void llama_log_set(void (*callback)(int level, const char * text, void * user_data), void * user_data);
const char * llama_print_system_info(void);
struct llama_model_params llama_model_default_params(void);
struct llama_context_params llama_context_default_params(void);
struct llama_model * llama_model_load_from_file(const char * path, struct llama_model_params params);
struct llama_model * llama_model_load_from_file_ptr(FILE * file, struct llama_model_params params);
void llama_model_free(struct llama_model * model);
struct llama_context * llama_init_from_model(struct llama_model * model,
                                             struct llama_context_params params);
void llama_free(struct llama_context * ctx);
uint32_t llama_n_ctx(const struct llama_context * ctx);
uint32_t llama_n_batch(const struct llama_context * ctx);
uint32_t llama_n_ubatch(const struct llama_context * ctx);
uint32_t llama_n_seq_max(const struct llama_context * ctx);
int32_t llama_n_threads(struct llama_context * ctx);
int32_t llama_n_threads_batch(struct llama_context * ctx);
void * llama_get_memory(const struct llama_context * ctx);
void llama_memory_clear(void * memory, bool data);
bool llama_memory_seq_rm(void * memory, llama_seq_id seq_id, llama_pos p0, llama_pos p1);
int32_t llama_decode(struct llama_context * ctx, llama_batch batch);
float * llama_get_logits_ith(struct llama_context * ctx, int32_t i);
const struct llama_vocab * llama_model_get_vocab(const struct llama_model * model);
int32_t llama_model_n_ctx_train(const struct llama_model * model);
int32_t llama_model_n_embd(const struct llama_model * model);
int32_t llama_model_n_layer(const struct llama_model * model);
bool llama_model_has_encoder(const struct llama_model * model);
bool llama_model_has_decoder(const struct llama_model * model);
bool llama_model_is_diffusion(const struct llama_model * model);
bool llama_model_is_recurrent(const struct llama_model * model);
int32_t llama_model_meta_val_str(const struct llama_model * model, const char * key, char * buf,
                                 size_t size);
const char * llama_model_chat_template(const struct llama_model * model, const char * name);
int32_t llama_vocab_n_tokens(const struct llama_vocab * vocab);
llama_token llama_vocab_bos(const struct llama_vocab * vocab);
llama_token llama_vocab_eos(const struct llama_vocab * vocab);
bool llama_vocab_get_add_bos(const struct llama_vocab * vocab);
bool llama_vocab_is_eog(const struct llama_vocab * vocab, llama_token token);
int32_t llama_tokenize(const struct llama_vocab * vocab, const char * text, int32_t text_len,
                       llama_token * tokens, int32_t n_tokens_max, bool add_special,
                       bool parse_special);
int32_t llama_token_to_piece(const struct llama_vocab * vocab, llama_token token, char * buf,
                             int32_t length, int32_t lstrip, bool special);
const char * ggml_op_name(int32_t op);
const char * ggml_type_name(int32_t type);
size_t ggml_nbytes(const struct ggml_tensor * tensor);
const char * ggml_version(void);
const char * ggml_commit(void);
bool llama_supports_gpu_offload(void);
int32_t llama_model_desc(const struct llama_model * model, char * buf, size_t size);
uint64_t llama_model_size(const struct llama_model * model);
uint64_t llama_model_n_params(const struct llama_model * model);
int32_t llama_model_n_head(const struct llama_model * model);
int32_t llama_model_n_head_kv(const struct llama_model * model);
int32_t llama_model_rope_type(const struct llama_model * model);
float llama_model_rope_freq_scale_train(const struct llama_model * model);
int32_t llama_model_meta_count(const struct llama_model * model);
int32_t llama_model_meta_key_by_index(const struct llama_model * model, int32_t i, char * buf,
                                      size_t size);
int32_t llama_model_meta_val_str_by_index(const struct llama_model * model, int32_t i, char * buf,
                                          size_t size);
"""
