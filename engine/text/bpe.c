/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Symbols form a doubly linked list over the bytes of the pre-token; a binary heap holds the merges that were
 * possible when they were pushed. An entry whose pair is gone is recognised when it is popped.
 */
#include "text/bpe.h"

#include <stdlib.h>
#include <string.h>

static const char where[] = "tokenizer.json";

/* ---- Merge table -------------------------------------------------------------------------------------- */

static size_t place(const rse_bpe *bpe, int32_t left, int32_t right) {
    uint64_t key = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * UINT64_C(0x9e3779b97f4a7c15);
    size_t i = (size_t)(key ^ key >> 32) & bpe->mask;
    while (bpe->merges[i].left >= 0 && (bpe->merges[i].left != left || bpe->merges[i].right != right)) {
        i = (i + 1) & bpe->mask;
    }
    return i;
}

/* NULL if the two do not merge. */
static const rse_merge *find_merge(const rse_bpe *bpe, int32_t left, int32_t right) {
    const rse_merge *merge = &bpe->merges[place(bpe, left, right)];
    return merge->left >= 0 ? merge : NULL;
}

static rse_status bad_merge(size_t rank, const char *what, rse_error *err) {
    return rse_fail(err, RSE_ERROR_FORMAT, "%s: merge %zu %s", where, rank, what);
}

/* A merge is the string "a b" or the pair ["a", "b"], each part spelled as in the vocabulary. The bytes of both
 * parts go to `pair`, the length of the first to *split. */
static rse_status read_merge(size_t rank, const rse_json *value, rse_text *pair, size_t *split,
                             rse_error *err) {
    const char *part[2] = {NULL, NULL};
    size_t length[2] = {0, 0};
    if (rse_json_kind(value) == RSE_JSON_STRING) {
        size_t whole;
        part[0] = rse_json_string(value, &whole);
        const char *blank = strchr(part[0], ' ');
        if (blank != NULL && strchr(blank + 1, ' ') == NULL) {
            length[0] = (size_t)(blank - part[0]);
            length[1] = whole - length[0] - 1;
            part[1] = blank + 1;
        }
    } else if (rse_json_kind(value) == RSE_JSON_ARRAY && rse_json_count(value) == 2) {
        part[0] = rse_json_string(rse_json_item(value, 0), &length[0]);
        part[1] = rse_json_string(rse_json_item(value, 1), &length[1]);
    }
    if (part[0] == NULL || part[1] == NULL || length[0] == 0 || length[1] == 0) {
        return bad_merge(rank, "is not two tokens", err);
    }
    pair->length = 0;
    RSE_TRY(rse_text_append(pair, part[0], length[0], err));
    RSE_TRY(rse_text_append(pair, part[1], length[1], err)); /* grows it; unspelling never lengthens */
    size_t left = rse_vocab_unspell(part[0], length[0], pair->data);
    size_t right = left != SIZE_MAX ? rse_vocab_unspell(part[1], length[1], pair->data + left) : SIZE_MAX;
    if (right == SIZE_MAX) {
        return bad_merge(rank, "has a character that stands for no byte", err);
    }
    *split = left;
    pair->length = left + right;
    return RSE_OK;
}

/* Equal pairs: the last one counts, as in the reference. */
static rse_status add_merge(rse_bpe *bpe, size_t rank, const rse_json *value, rse_text *pair, rse_error *err) {
    size_t split = 0;
    RSE_TRY(read_merge(rank, value, pair, &split, err));
    rse_merge merge = {.left = rse_vocab_find(&bpe->vocab, pair->data, split),
                       .right = rse_vocab_find(&bpe->vocab, pair->data + split, pair->length - split),
                       .rank = (int32_t)rank,
                       .id = rse_vocab_find(&bpe->vocab, pair->data, pair->length)};
    if (merge.left < 0 || merge.right < 0 || merge.id < 0) {
        return bad_merge(rank, "makes or uses a token that is not in the vocabulary", err);
    }
    bpe->merges[place(bpe, merge.left, merge.right)] = merge;
    return RSE_OK;
}

static rse_status load_merges(rse_bpe *bpe, const rse_json *list, rse_error *err) {
    size_t count = rse_json_count(list);
    size_t slots = 64;
    while (slots < 2 * count) {
        slots *= 2;
    }
    if (count > RSE_VOCAB_MAX) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: has %zu merges, at most %d are allowed", where, count,
                        RSE_VOCAB_MAX);
    }
    bpe->merges = malloc(slots * sizeof *bpe->merges);
    if (bpe->merges == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "%s: no memory for %zu merges", where, count);
    }
    memset(bpe->merges, 0xff, slots * sizeof *bpe->merges);
    bpe->mask = slots - 1;
    rse_text pair = {0};
    rse_status status = RSE_OK;
    for (size_t i = 0; i < count && status == RSE_OK; ++i) {
        status = add_merge(bpe, i, rse_json_item(list, i), &pair, err);
    }
    rse_text_free(&pair);
    return status;
}

/* Members of "model" that would change the ids and that this encoder does not have must be empty. */
static rse_status check_model(const rse_json *model, rse_error *err) {
    const char *type = "BPE";
    RSE_TRY(rse_json_get_string(model, where, "type", &type, err));
    if (strcmp(type, "BPE") != 0) {
        return rse_fail(err, RSE_ERROR_UNSUPPORTED, "%s: model type %.32s is not supported; known: BPE", where,
                        type);
    }
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (int i = 0; i < 2; ++i) {
        const char *text = "";
        RSE_TRY(rse_json_get_string(model, where, affixes[i], &text, err));
        if (text[0] != '\0') {
            return rse_fail(err, RSE_ERROR_UNSUPPORTED, "%s: %s is \"%.32s\", supported: none", where,
                            affixes[i], text);
        }
    }
    double dropout = 0;
    return rse_json_get_number(model, where, "dropout", 0, 0, &dropout, err);
}

rse_status rse_bpe_load(rse_bpe *bpe, const rse_json *model, int32_t largest, rse_error *err) {
    const rse_json *vocab = NULL;
    const rse_json *merges = NULL;
    RSE_TRY(check_model(model, err));
    RSE_TRY(rse_json_need(model, where, "vocab", err));
    RSE_TRY(rse_json_need(model, where, "merges", err));
    RSE_TRY(rse_json_get(model, where, "vocab", RSE_JSON_OBJECT, &vocab, err));
    RSE_TRY(rse_json_get(model, where, "merges", RSE_JSON_ARRAY, &merges, err));
    RSE_TRY(rse_json_get_bool(model, where, "ignore_merges", &bpe->ignore_merges, err));
    RSE_TRY(rse_vocab_load(&bpe->vocab, vocab, largest, err));
    return load_merges(bpe, merges, err);
}

void rse_bpe_free(rse_bpe *bpe) {
    rse_vocab_free(&bpe->vocab);
    free(bpe->merges);
    *bpe = (rse_bpe){0};
}

/* ---- Encoding ----------------------------------------------------------------------------------------- */

typedef struct rse_symbol {
    int32_t id;             /* -1: merged into its left neighbour */
    int32_t previous, next; /* -1 at the ends */
} symbol;

typedef struct rse_candidate {
    int32_t rank;
    int32_t position; /* of the left symbol */
    int32_t id;
} candidate;

typedef struct heap {
    candidate *items;
    size_t count;
} heap;

static bool before(const candidate *a, const candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->position < b->position;
}

static void push(heap *h, candidate item) {
    size_t i = h->count++;
    for (; i > 0 && before(&item, &h->items[(i - 1) / 2]); i = (i - 1) / 2) {
        h->items[i] = h->items[(i - 1) / 2];
    }
    h->items[i] = item;
}

static candidate pop(heap *h) {
    candidate top = h->items[0];
    candidate last = h->items[--h->count];
    size_t i = 0;
    for (size_t child = 1; child < h->count; child = 2 * i + 1) {
        child += child + 1 < h->count && before(&h->items[child + 1], &h->items[child]);
        if (!before(&h->items[child], &last)) {
            break;
        }
        h->items[i] = h->items[child];
        i = child;
    }
    h->items[i] = last;
    return top;
}

static void push_pair(const rse_bpe *bpe, heap *h, const symbol *symbols, int32_t left) {
    const rse_merge *merge = find_merge(bpe, symbols[left].id, symbols[symbols[left].next].id);
    if (merge != NULL) {
        push(h, (candidate){merge->rank, left, merge->id});
    }
}

static void merge_all(const rse_bpe *bpe, heap *h, symbol *symbols) {
    while (h->count > 0) {
        candidate top = pop(h);
        symbol *left = &symbols[top.position];
        if (left->id < 0 || left->next < 0) {
            continue;
        }
        symbol *right = &symbols[left->next];
        const rse_merge *merge = find_merge(bpe, left->id, right->id);
        if (merge == NULL || merge->id != top.id) {
            continue;
        }
        left->id = top.id;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0) {
            symbols[left->next].previous = top.position;
            push_pair(bpe, h, symbols, top.position);
        }
        if (left->previous >= 0) {
            push_pair(bpe, h, symbols, left->previous);
        }
    }
}

/* n bytes have n - 1 pairs, and each of at most n - 1 merges makes two new ones: 3 n entries are enough. */
static rse_status reserve(rse_bpe_work *work, size_t length, rse_error *err) {
    if (length <= work->capacity) {
        return RSE_OK;
    }
    size_t capacity = length < 256 ? 256 : length;
    if (length > INT32_MAX) {
        return rse_fail(err, RSE_ERROR_USAGE, "a word has %zu bytes, at most %d are allowed", length,
                        INT32_MAX);
    }
    rse_bpe_work_free(work);
    work->symbols = malloc(capacity * sizeof *work->symbols);
    work->heap = malloc(3 * capacity * sizeof *work->heap);
    if (work->symbols == NULL || work->heap == NULL) {
        rse_bpe_work_free(work);
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory to encode a word of %zu bytes", length);
    }
    work->capacity = capacity;
    return RSE_OK;
}

rse_status rse_bpe_encode(const rse_bpe *bpe, rse_bpe_work *work, const char *bytes, size_t length,
                          rse_ids *ids, rse_error *err) {
    if (length == 0) {
        return RSE_OK;
    }
    int32_t whole = bpe->ignore_merges ? rse_vocab_find(&bpe->vocab, bytes, length) : -1;
    if (whole >= 0) {
        return rse_ids_append(ids, whole, err);
    }
    RSE_TRY(reserve(work, length, err));
    symbol *symbols = work->symbols;
    int32_t n = (int32_t)length;
    for (int32_t i = 0; i < n; ++i) {
        symbols[i] = (symbol){bpe->vocab.byte_ids[(uint8_t)bytes[i]], i - 1, i + 1 < n ? i + 1 : -1};
    }
    heap h = {work->heap, 0};
    for (int32_t i = 0; i + 1 < n; ++i) {
        push_pair(bpe, &h, symbols, i);
    }
    merge_all(bpe, &h, symbols);
    for (int32_t i = 0; i >= 0; i = symbols[i].next) {
        RSE_TRY(rse_ids_append(ids, symbols[i].id, err));
    }
    return RSE_OK;
}

void rse_bpe_work_free(rse_bpe_work *work) {
    free(work->symbols);
    free(work->heap);
    *work = (rse_bpe_work){0};
}
