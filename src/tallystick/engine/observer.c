/* The engine's scheduler callback, compiled: the same as libllama/python_tap.py, byte for byte, but
 * without an interpreter call for each of a graph's nodes.
 *
 * It copies the rows of every tensor named "l_out-<layer>", the ids of every "ffn_moe_topk-<layer>"
 * and the beginning of every matrix product, as far as they are watched; it numbers the graph's
 * nodes; and it checks two things that have no getter: that no flash attention node is evaluated
 * and that the KV cache holds 16-bit floats.
 */
#include "observer.h"

#include <stdlib.h>
#include <string.h>

#define TYPE_F32 0
#define TYPE_F16 1
#define TYPE_I32 26

#define WATCH_ROWS 1
#define WATCH_ROUTES 2
#define WATCH_NODES 4
#define WATCH_PRODUCTS 8

/* What is read of a node; also the kinds of records. */
#define ROWS 1
#define IDS 2
#define PRODUCT 4
#define BOUNDARY 8 /* nothing is read: the end of a layer */

#define CHECK_FLASH 1
#define CHECK_CACHE 2
#define CHECK_CACHE_NOT_F16 3

#define MAX_READ_ELEMENTS 64
#define MAX_NODES 65536

int64_t tap_abi(void) {
    return (int64_t) (sizeof(struct ggml_tensor) * 1000000 + sizeof(struct tap) * 1000 +
                      sizeof(struct tap_record) + sizeof(struct node) + sizeof(struct described));
}

/* Return the layer in a name of the form <prefix><layer>, -1 in any other. */
static int32_t layer_in(const char * name, const char * prefix, size_t length) {
    if (memcmp(name, prefix, length)) return -1;
    const char * digits = name + length;
    int32_t layer = 0;
    int i = 0;
    for (; digits[i] >= '0' && digits[i] <= '9' && i < 5; i++) layer = 10 * layer + digits[i] - '0';
    if (i < 1 || i > 4 || digits[i] || (digits[0] == '0' && i > 1)) return -1;
    return layer;
}

static int32_t rows_layer(const struct ggml_tensor * t) { return layer_in(t->name, "l_out-", 6); }

static int32_t ids_layer(const struct ggml_tensor * t) {
    return layer_in(t->name, "ffn_moe_topk-", 13);
}

static int64_t elements(const struct ggml_tensor * t) {
    return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
}

static bool is_flat(const struct ggml_tensor * t) {
    return t->ne[2] == 1 && t->ne[3] == 1 && t->nb[0] == 4;
}

static bool is_product(const struct ggml_tensor * t) {
    size_t step = 4;
    for (int i = 0; i < 4; i++) {
        if (t->nb[i] != step) return false;
        step *= (size_t) t->ne[i];
    }
    return t->type == TYPE_F32;
}

/* Tell what is to be read of a node: nothing where its form is not the expected one. */
static int32_t roles_of(struct tap * tap, const struct ggml_tensor * t) {
    int32_t roles = 0;
    if ((tap->watch & WATCH_PRODUCTS) && t->op == tap->op_product && elements(t)) {
        if (is_product(t)) roles |= PRODUCT;
        else tap->unreadable++;
    }
    if ((tap->watch & WATCH_ROWS) && rows_layer(t) >= 0) {
        if (t->type == TYPE_F32 && is_flat(t) && t->nb[1] == 4 * (size_t) t->ne[0]) roles |= ROWS;
        else tap->bad_rows++;
    }
    if ((tap->watch & (WATCH_ROUTES | WATCH_PRODUCTS)) && ids_layer(t) >= 0) {
        if (t->type == TYPE_I32 && is_flat(t) && t->src[0]) roles |= IDS;
        else tap->unreadable++;
    }
    if (tap->on_layer && rows_layer(t) >= 0) roles |= BOUNDARY;
    return roles;
}

static int32_t check_of(const struct tap * tap, const struct ggml_tensor * t) {
    if (t->op == tap->op_flash_attention) return CHECK_FLASH;
    if (t->op != tap->op_set_rows) return 0;
    if (memcmp(t->name, "cache_k_l", 9) && memcmp(t->name, "cache_v_l", 9)) return 0;
    return t->type == TYPE_F16 ? CHECK_CACHE : CHECK_CACHE_NOT_F16;
}

static void count(struct tap * tap, int32_t check) {
    if (check == CHECK_FLASH) tap->flash_nodes++;
    if (check >= CHECK_CACHE) tap->cache_nodes++;
    if (check == CHECK_CACHE_NOT_F16) tap->cache_nodes_not_f16++;
}

/* Number the node and list it. */
static bool ask_graph(struct tap * tap, const struct ggml_tensor * t) {
    int64_t number = node_number(&tap->nodes, t);
    void * listed =
        room_for(tap->listed, tap->n_listed, 1, &tap->max_listed, sizeof *tap->listed);
    if (listed) tap->listed = listed;
    if (number < 0 || !listed) {
        tap->no_memory++;
        return false;
    }
    struct node * node = &tap->nodes.nodes[number];
    if (node->roles == NOT_CLASSIFIED) {
        node->roles = roles_of(tap, t);
        node->check = check_of(tap, t);
    }
    if (node->has_elements) tap->listed[tap->n_listed++] = (int32_t) number;
    count(tap, node->check);
    tap->roles = node->roles;
    return node->roles != 0;
}

static bool ask(struct tap * tap, const struct ggml_tensor * t) {
    if (tap->watch & (WATCH_NODES | WATCH_PRODUCTS)) return ask_graph(tap, t);
    count(tap, check_of(tap, t));
    tap->roles = roles_of(tap, t);
    return tap->roles != 0;
}

/* Add a record of `rows` rows of `row_bytes`; return where they go, NULL without memory. */
static char * add_record(struct tap * tap, int32_t kind, int32_t layer, int64_t rows,
                         int64_t row_bytes, int64_t experts) {
    void * records =
        room_for(tap->records, tap->n_records, 1, &tap->max_records, sizeof *tap->records);
    if (records) tap->records = records;
    void * bytes = room_for(tap->bytes, tap->n_bytes, rows * row_bytes, &tap->max_bytes, 1);
    if (bytes) tap->bytes = bytes;
    if (!records || !bytes) {
        tap->no_memory++;
        return NULL;
    }
    struct tap_record * r = &tap->records[tap->n_records++];
    r->kind = kind;
    r->layer = layer;
    r->rows = rows;
    r->row_bytes = row_bytes;
    r->experts = experts;
    r->place = tap->n_listed - 1;
    r->offset = tap->n_bytes;
    tap->n_bytes += rows * row_bytes;
    return tap->bytes + r->offset;
}

static void read_rows(struct tap * tap, const struct ggml_tensor * t, int32_t kind, int32_t layer,
                      int64_t experts) {
    int64_t rows = t->ne[1], row_bytes = 4 * t->ne[0];
    char * to = add_record(tap, kind, layer, rows, row_bytes, experts);
    if (!to || !elements(t)) return;
    for (int64_t i = 0; i < rows; i++, to += row_bytes) {
        memcpy(to, (const char *) t->data + (size_t) i * t->nb[1], (size_t) row_bytes);
    }
}

static void read_product(struct tap * tap, const struct ggml_tensor * t) {
    int64_t count = elements(t);
    if (count > MAX_READ_ELEMENTS) count = MAX_READ_ELEMENTS;
    char * to = add_record(tap, PRODUCT, 0, 1, 4 * count, 0);
    if (to) memcpy(to, t->data, (size_t) (4 * count));
}

static void read_node(struct tap * tap, const struct ggml_tensor * t) {
    if (elements(t) && !t->data) {
        if (tap->roles & ROWS) tap->bad_rows++;
        else if (tap->roles & ~BOUNDARY) tap->unreadable++;
        return;
    }
    if (tap->roles & ROWS) read_rows(tap, t, ROWS, rows_layer(t), 0);
    if (tap->roles & IDS) read_rows(tap, t, IDS, ids_layer(t), t->src[0]->ne[0]);
    if (tap->roles & PRODUCT) read_product(tap, t);
}

bool tap_callback(struct ggml_tensor * t, bool asks, void * user_data) {
    struct tap * tap = user_data;
    if (asks) return ask(tap, t);
    read_node(tap, t);
    if (tap->roles & BOUNDARY) tap->on_layer(rows_layer(t));
    return true;
}

/* Begin another evaluation. Return whether the nodes' numbers begin anew. */
bool tap_next(struct tap * tap) {
    tap->n_records = tap->n_bytes = tap->n_listed = 0;
    return nodes_next(&tap->nodes, MAX_NODES);
}

void tap_free(struct tap * tap) {
    free(tap->records);
    free(tap->bytes);
    free(tap->listed);
    nodes_free(&tap->nodes);
    memset(tap, 0, sizeof *tap);
}
