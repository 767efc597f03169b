/* Which nodes there were: each different one gets a number and is described once.
 *
 * A graph hardly changes from evaluation to evaluation, so the node at this place the last time
 * is tried first; a hash table finds all others.
 */
#include "observer.h"

#include <stdlib.h>
#include <string.h>

void * room_for(void * items, int64_t count, int64_t more, int64_t * max, size_t size) {
    if (items && count + more <= *max) return items;
    int64_t wanted = count + more + (count + more) / 2 + 16;
    void * bigger = realloc(items, (size_t) wanted * size);
    if (bigger) *max = wanted;
    return bigger;
}

static void describe(struct described * d, const struct ggml_tensor * t) {
    d->type = t->type;
    d->op = t->op;
    memcpy(d->ne, t->ne, sizeof d->ne);
    memcpy(d->nb, t->nb, sizeof d->nb);
    strncpy(d->name, t->name, sizeof d->name); /* and zeros behind its end */
}

static bool is_described(const struct described * d, const struct ggml_tensor * t) {
    return d->type == t->type && d->op == t->op && !memcmp(d->ne, t->ne, sizeof d->ne) &&
           !memcmp(d->nb, t->nb, sizeof d->nb) && !strncmp(d->name, t->name, sizeof d->name);
}

static bool is_node(const struct nodes * nodes, int64_t number, const struct ggml_tensor * t) {
    const struct node * node = &nodes->nodes[number];
    const struct described * d = &nodes->tensors[node->first];
    if (!is_described(d, t)) return false;
    int found = 0;
    for (int i = 0; i < MAX_SOURCES; i++) {
        if (!t->src[i]) continue;
        if (found == node->n_sources || !is_described(d + ++found, t->src[i])) return false;
    }
    return found == node->n_sources;
}

static uint64_t hash_tensors(const struct described * d, int64_t count) {
    const unsigned char * bytes = (const unsigned char *) d;
    uint64_t hash = 0x9E3779B97F4A7C15u;
    for (size_t i = 0; i < (size_t) count * sizeof *d; i += 8) {
        uint64_t word;
        memcpy(&word, bytes + i, 8);
        hash = (hash ^ word) * 0xFF51AFD7ED558CCDu;
        hash ^= hash >> 32;
    }
    return hash;
}

static int32_t * slot_of(struct nodes * nodes, uint64_t hash, const struct ggml_tensor * t) {
    for (uint64_t i = hash;; i++) {
        int32_t * slot = &nodes->slots[i & (uint64_t) (nodes->n_slots - 1)];
        if (!*slot) return slot;
        if (nodes->nodes[*slot - 1].hash == hash && is_node(nodes, *slot - 1, t)) return slot;
    }
}

/* Keep the table at most half full. */
static bool widen(struct nodes * nodes) {
    if (2 * (nodes->n_nodes + 1) <= nodes->n_slots) return true;
    int64_t size = nodes->n_slots ? 2 * nodes->n_slots : 4096;
    int32_t * slots = calloc((size_t) size, sizeof *slots);
    if (!slots) return false;
    for (int64_t n = 0; n < nodes->n_nodes; n++) {
        uint64_t i = nodes->nodes[n].hash;
        while (slots[i & (uint64_t) (size - 1)]) i++;
        slots[i & (uint64_t) (size - 1)] = (int32_t) n + 1;
    }
    free(nodes->slots);
    nodes->slots = slots;
    nodes->n_slots = size;
    return true;
}

static int64_t find_or_add(struct nodes * nodes, const struct ggml_tensor * t) {
    void * tensors = room_for(nodes->tensors, nodes->n_tensors, 1 + MAX_SOURCES,
                              &nodes->max_tensors, sizeof *nodes->tensors);
    if (!tensors) return -1;
    nodes->tensors = tensors;
    void * list =
        room_for(nodes->nodes, nodes->n_nodes, 1, &nodes->max_nodes, sizeof *nodes->nodes);
    if (!list) return -1;
    nodes->nodes = list;
    if (nodes->n_nodes == INT32_MAX - 1 || !widen(nodes)) return -1;

    struct described * d = &nodes->tensors[nodes->n_tensors];
    int32_t n_sources = 0;
    describe(d, t);
    for (int i = 0; i < MAX_SOURCES; i++) {
        if (t->src[i]) describe(d + ++n_sources, t->src[i]);
    }
    uint64_t hash = hash_tensors(d, 1 + n_sources);
    int32_t * slot = slot_of(nodes, hash, t);
    if (!*slot) {
        struct node * node = &nodes->nodes[nodes->n_nodes++];
        node->hash = hash;
        node->first = nodes->n_tensors;
        node->n_sources = n_sources;
        node->roles = NOT_CLASSIFIED;
        node->check = 0;
        node->has_elements = t->ne[0] && t->ne[1] && t->ne[2] && t->ne[3];
        nodes->n_tensors += 1 + n_sources;
        *slot = (int32_t) nodes->n_nodes;
    }
    return *slot - 1;
}

int64_t node_number(struct nodes * nodes, const struct ggml_tensor * t) {
    int64_t place = nodes->n_now;
    void * now = room_for(nodes->now, place, 1, &nodes->max_now, sizeof *nodes->now);
    if (!now) return -1;
    nodes->now = now;
    int64_t number = -1;
    if (place < nodes->n_before && is_node(nodes, nodes->before[place], t)) {
        number = nodes->before[place];
    } else {
        number = find_or_add(nodes, t);
    }
    if (number >= 0) nodes->now[nodes->n_now++] = (int32_t) number;
    return number;
}

bool nodes_next(struct nodes * nodes, int64_t max) {
    int32_t * spare = nodes->before;
    int64_t spare_max = nodes->max_before;
    nodes->before = nodes->now;
    nodes->n_before = nodes->n_now;
    nodes->max_before = nodes->max_now;
    nodes->now = spare;
    nodes->n_now = 0;
    nodes->max_now = spare_max;
    if (nodes->n_nodes < max) return false;
    nodes->n_before = nodes->n_nodes = nodes->n_tensors = 0;
    memset(nodes->slots, 0, (size_t) nodes->n_slots * sizeof *nodes->slots);
    return true;
}

void nodes_free(struct nodes * nodes) {
    free(nodes->nodes);
    free(nodes->tensors);
    free(nodes->slots);
    free(nodes->now);
    free(nodes->before);
    memset(nodes, 0, sizeof *nodes);
}
