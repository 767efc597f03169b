/* The engine's scheduler callback, compiled: the same as libllama/tap.py's Python one, byte for
 * byte, but without an interpreter call for each of a graph's nodes.
 *
 * It copies the rows of every tensor named "l_out-<layer>" and checks two things that have no
 * getter: that no flash attention node is evaluated and that the KV cache holds 16-bit floats.
 * The layout of ggml_tensor belongs to the one pinned build of the engine library.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define TYPE_F32 0
#define TYPE_F16 1

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

struct tap_record {
    int64_t layer;
    int64_t rows;
    int64_t row_bytes;
    int64_t offset;
};

struct tap {
    int32_t op_flash_attention; /* in: operation numbers of the build */
    int32_t op_set_rows;
    int64_t flash_nodes; /* out: counters since the tap was made */
    int64_t cache_nodes;
    int64_t cache_nodes_not_f16;
    int64_t bad_rows; /* layer outputs that are not plain float rows, or no memory for them */
    int64_t n_records;
    int64_t max_records;
    struct tap_record * records;
    char * bytes;
    int64_t n_bytes;
    int64_t max_bytes;
};

int64_t tap_abi(void) { return (int64_t) sizeof(struct ggml_tensor) * 1000 + sizeof(struct tap); }

static bool is_layer_output(const struct ggml_tensor * t) {
    return memcmp(t->name, "l_out-", 6) == 0;
}

static bool is_cache(const struct ggml_tensor * t) {
    return memcmp(t->name, "cache_k_l", 9) == 0 || memcmp(t->name, "cache_v_l", 9) == 0;
}

static bool grow(struct tap * tap, int64_t more) {
    if (tap->n_records == tap->max_records) {
        int64_t max = tap->max_records ? 2 * tap->max_records : 256;
        void * p = realloc(tap->records, (size_t) max * sizeof(struct tap_record));
        if (!p) return false;
        tap->records = p;
        tap->max_records = max;
    }
    if (tap->n_bytes + more > tap->max_bytes) {
        int64_t max = tap->n_bytes + more + (tap->n_bytes + more) / 2;
        void * p = realloc(tap->bytes, (size_t) max);
        if (!p) return false;
        tap->bytes = p;
        tap->max_bytes = max;
    }
    return true;
}

static void keep_rows(struct tap * tap, const struct ggml_tensor * t) {
    int64_t row_bytes = t->ne[0] * 4;
    int64_t rows = t->ne[1];
    if (t->type != TYPE_F32 || t->ne[2] != 1 || t->ne[3] != 1 || t->nb[0] != 4 ||
        t->nb[1] != (size_t) row_bytes || !t->data || !grow(tap, rows * row_bytes)) {
        tap->bad_rows++;
        return;
    }
    struct tap_record * r = &tap->records[tap->n_records++];
    r->layer = strtol(t->name + 6, NULL, 10);
    r->rows = rows;
    r->row_bytes = row_bytes;
    r->offset = tap->n_bytes;
    memcpy(tap->bytes + tap->n_bytes, t->data, (size_t) (rows * row_bytes));
    tap->n_bytes += rows * row_bytes;
}

bool tap_callback(struct ggml_tensor * t, bool ask, void * user_data) {
    struct tap * tap = user_data;
    if (!ask) {
        keep_rows(tap, t);
        return true;
    }
    if (t->op == tap->op_flash_attention) tap->flash_nodes++;
    if (t->op == tap->op_set_rows && is_cache(t)) {
        tap->cache_nodes++;
        if (t->type != TYPE_F16) tap->cache_nodes_not_f16++;
    }
    return is_layer_output(t);
}

void tap_free(struct tap * tap) {
    free(tap->records);
    free(tap->bytes);
    tap->records = NULL;
    tap->bytes = NULL;
    tap->max_records = tap->max_bytes = 0;
}
