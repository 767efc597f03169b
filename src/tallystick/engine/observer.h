/* What the parts of the compiled observer share; libllama/compiled_tap.py mirrors it. */
#ifndef TALLYSTICK_OBSERVER_H
#define TALLYSTICK_OBSERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The layout of the one pinned build of the engine library. */
#define MAX_SOURCES 10
struct ggml_tensor {
    int32_t type;
    void * buffer;
    int64_t ne[4];
    size_t nb[4];
    int32_t op;
    int32_t op_params[16];
    int32_t flags;
    struct ggml_tensor * src[MAX_SOURCES];
    struct ggml_tensor * view_src;
    size_t view_offs;
    void * data;
    char name[64];
    void * extra;
    char padding[8];
};

/* What a tensor is, without its data. No padding: it is hashed and compared as bytes. */
struct described {
    int32_t type;
    int32_t op;
    int64_t ne[4];
    size_t nb[4];
    char name[64];
};

/* A node: `first` is its tensor's index in `tensors`; those of its sources follow. */
struct node {
    uint64_t hash;
    int64_t first;
    int32_t n_sources;
    int32_t roles; /* what is read of it; NOT_CLASSIFIED in a new node */
    int32_t check;
    int32_t has_elements;
};
#define NOT_CLASSIFIED (-1)

/* The different nodes so far, by number, and the numbers of this and the last evaluation. */
struct nodes {
    struct node * nodes;
    int64_t n_nodes;
    int64_t max_nodes;
    struct described * tensors;
    int64_t n_tensors;
    int64_t max_tensors;
    int32_t * slots; /* a hash table: number + 1, 0 is empty; the size is a power of two */
    int64_t n_slots;
    int32_t * now;
    int64_t n_now;
    int64_t max_now;
    int32_t * before;
    int64_t n_before;
    int64_t max_before;
};

/* One reading. Of kind rows and ids: `rows` rows of `row_bytes`; of a product: one row.
 * `place` is the index of the node among the listed ones. */
struct tap_record {
    int32_t kind;
    int32_t layer;
    int64_t rows;
    int64_t row_bytes;
    int64_t experts;
    int64_t place;
    int64_t offset;
};

struct tap {
    int32_t watch; /* in: a sum of WATCH_... */
    int32_t op_flash_attention; /* in: operation numbers of the build */
    int32_t op_set_rows;
    int32_t op_product;
    void (*on_layer)(int32_t layer); /* in: called when a layer is done; NULL for nobody */
    int64_t flash_nodes; /* out: counters since the tap was made */
    int64_t cache_nodes;
    int64_t cache_nodes_not_f16;
    int64_t bad_rows; /* layer outputs that are not plain float rows */
    int64_t unreadable; /* other tensors that are to be read, and are in another form */
    int64_t no_memory; /* what could not be recorded */
    int64_t roles; /* of the node that was asked about last */
    struct tap_record * records; /* out: since tap_next */
    int64_t n_records;
    int64_t max_records;
    char * bytes;
    int64_t n_bytes;
    int64_t max_bytes;
    int32_t * listed; /* numbers of the evaluated nodes that have elements */
    int64_t n_listed;
    int64_t max_listed;
    struct nodes nodes;
};

/* Return the number of the node that makes `t`, a new one if need be; -1 without memory. */
int64_t node_number(struct nodes * nodes, const struct ggml_tensor * t);

/* Begin another evaluation. With `max` nodes or more all are forgotten: return whether. */
bool nodes_next(struct nodes * nodes, int64_t max);

void nodes_free(struct nodes * nodes);

/* Make room for `more` items behind `count`: return the new address, NULL without memory. */
void * room_for(void * items, int64_t count, int64_t more, int64_t * max, size_t size);

#endif
