/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Session files: a sequence with its state, to be continued later, by this engine or by one of another method,
 * window or io format.
 *
 *     header                     see file_header; native byte order, like the model's own files
 *     int32 ids[position + tail], then zeros up to a multiple of 16 bytes
 *     the library's export of the slot, state_bytes
 *     for every attention layer: keys, then values, [position][kv_heads][head_dim] in kv_dtype
 *     uint64 XXH3 of all of the above
 *
 * A file is written beside its final name, synced and renamed, so that a crash leaves the old file or the new
 * one. On loading the checksum is verified before anything is believed.
 */
#include "base/file.h"
#include "numbers.h"
#include "sched/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { FILE_VERSION = 1, PIECE_TOKENS = 64 };
static const char file_magic[8] = {'R', 'S', 'E', 'S', 'S', 'I', 'O', 'N'};

typedef struct file_header {
    char magic[8];
    uint32_t version;
    int32_t kv_dtype; /* RSSM_DTYPE_* */
    uint64_t fingerprint;
    uint64_t id;
    uint64_t seed;
    int64_t position; /* tokens in the state */
    int64_t tail;     /* ids beyond it */
    int64_t state_bytes;
    int32_t kv_layers;
    int32_t kv_width; /* kv_heads * head_dim */
    uint64_t reserved;
} file_header;
_Static_assert(sizeof(file_header) == 80, "no padding, and what follows is aligned");

/* ---- Writing ---- */

typedef struct sink {
    FILE *file;
    XXH3_state_t *hash;
    bool failed;
} sink;

static void put(sink *out, const void *data, size_t bytes) {
    if (bytes > 0 && !out->failed) {
        (void)XXH3_64bits_update(out->hash, data, bytes);
        out->failed = fwrite(data, 1, bytes, out->file) != bytes;
    }
}

static int64_t kv_width(const rse_engine *engine) {
    const rse_kv_desc *desc = rse_kv_pool_desc(engine->kv);
    return (int64_t)desc->kv_heads * desc->head_dim;
}

/* Bytes of the ids in a file. */
static int64_t ids_bytes(int64_t count) {
    return (count * (int64_t)sizeof(int32_t) + 15) / 16 * 16;
}

/* Keys or values of some tokens, in the pool's format; narrow has room for them. */
static void put_values(sink *out, const float *values, int64_t count, int32_t dtype, uint16_t *narrow) {
    if (dtype == RSSM_DTYPE_BF16) {
        for (int64_t i = 0; i < count; i++) {
            narrow[i] = rssm_bf16_of_f32(values[i]);
        }
        put(out, narrow, (size_t)count * sizeof *narrow);
    } else {
        put(out, values, (size_t)count * sizeof *values);
    }
}

static rse_status put_kv(sink *out, const rse_session *session, rse_error *err) {
    const rse_engine *engine = session->engine;
    const rse_kv_desc *desc = rse_kv_pool_desc(engine->kv);
    int64_t width = kv_width(engine);
    int64_t size = PIECE_TOKENS * width;
    float *keys = malloc((size_t)(3 * size) * sizeof *keys);
    if (keys == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory to save keys and values");
    }
    float *values = keys + size;
    uint16_t *narrow = (uint16_t *)(values + size);
    for (int32_t half = 0; half < 2 * desc->layers; half++) {
        for (int64_t start = 0; start < session->position; start += PIECE_TOKENS) {
            int64_t left = session->position - start;
            int64_t tokens = left < PIECE_TOKENS ? left : PIECE_TOKENS;
            rse_kv_read(engine->kv, &session->kv, half / 2, start, tokens, keys, width, values, width);
            put_values(out, half % 2 == 0 ? keys : values, tokens * width, desc->dtype, narrow);
        }
    }
    free(keys);
    return RSE_OK;
}

static rse_status write_body(sink *out, const rse_session *session, const rse_session_tail *tail,
                             rse_error *err) {
    const rse_kv_desc *desc = rse_kv_pool_desc(session->engine->kv);
    void *state;
    file_header header = {
        .version = FILE_VERSION,
        .kv_dtype = desc->dtype,
        .fingerprint = session->engine->model->fingerprint,
        .id = session->id,
        .seed = tail->seed,
        .position = session->position,
        .tail = tail->count,
        .kv_layers = desc->layers,
        .kv_width = (int32_t)kv_width(session->engine),
    };
    memcpy(header.magic, file_magic, sizeof header.magic);
    rse_status status = rse_session_export(session, &state, &header.state_bytes, err);
    if (status == RSE_OK) {
        put(out, &header, sizeof header);
        put(out, session->ids.data, (size_t)session->position * sizeof *session->ids.data);
        put(out, tail->ids, (size_t)tail->count * sizeof *tail->ids);
        int64_t count = session->position + tail->count;
        put(out, (const char[16]){0}, (size_t)(ids_bytes(count) - count * (int64_t)sizeof *tail->ids));
        put(out, state, (size_t)header.state_bytes);
        status = put_kv(out, session, err);
    }
    free(state);
    uint64_t checksum = XXH3_64bits_digest(out->hash);
    put(out, &checksum, sizeof checksum);
    return status;
}

static rse_status write_file(const char *path, const rse_session *session, const rse_session_tail *tail,
                             rse_error *err) {
    FILE *file = fopen(path, "wb");
    if (file == NULL) {
        return rse_fail(err, RSE_ERROR_IO, "%s: %s", path, strerror(errno));
    }
    sink out = {.file = file, .hash = XXH3_createState()};
    rse_status status = RSE_OK;
    if (out.hash == NULL || XXH3_64bits_reset(out.hash) != XXH_OK) {
        status = rse_fail(err, RSE_ERROR_MEMORY, "no memory for a hash");
    } else {
        status = write_body(&out, session, tail, err);
    }
    (void)XXH3_freeState(out.hash);
    bool failed = out.failed || fflush(file) != 0 || fsync(fileno(file)) != 0;
    int reason = errno;
    failed = fclose(file) != 0 || failed;
    if (status == RSE_OK && failed) {
        status = rse_fail(err, RSE_ERROR_IO, "%s: %s", path, strerror(reason));
    }
    return status;
}

/* Makes a rename last: the directory is synced too. Best effort, for not every file system can. */
static void sync_directory(const char *path) {
    const char *slash = strrchr(path, '/');
    char *directory = slash == NULL ? strdup(".") : strndup(path, (size_t)(slash - path) + 1);
    int fd = directory != NULL ? open(directory, O_RDONLY | O_DIRECTORY) : -1;
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
    free(directory);
}

static rse_status check_method(const rse_session *session, rse_error *err) {
    return session->engine->snapshots == NULL
               ? RSE_OK
               : rse_fail(err, RSE_ERROR_UNSUPPORTED, "session files are not for the snapshot method");
}

rse_status rse_session_save(const rse_session *session, const rse_session_tail *tail, const char *path,
                            rse_error *err) {
    RSE_TRY(check_method(session, err));
    RSE_TRY(rse_session_usable(session, err));
    if (session->pending != 0) {
        return rse_fail(err, RSE_ERROR_USAGE, "session %d cannot be saved: %d tokens are pending", session->slot,
                        session->pending);
    }
    size_t size = strlen(path) + 32;
    char *temporary = malloc(size);
    if (temporary == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for a path");
    }
    snprintf(temporary, size, "%s.%ld.tmp", path, (long)getpid());
    rse_status status = write_file(temporary, session, tail, err);
    if (status == RSE_OK && rename(temporary, path) != 0) {
        status = rse_fail(err, RSE_ERROR_IO, "%s: %s", path, strerror(errno));
    }
    if (status != RSE_OK) {
        (void)unlink(temporary);
    } else {
        sync_directory(path);
    }
    free(temporary);
    return status;
}

/* ---- Reading ---- */

/* The parts of a mapped file, once its sizes add up. */
typedef struct file_view {
    file_header header;
    const uint8_t *ids;
    const uint8_t *state;
    const uint8_t *kv;
    int64_t kv_bytes; /* of a value */
} file_view;

static rse_status damaged(const char *path, const char *what, rse_error *err) {
    return rse_fail(err, RSE_ERROR_FORMAT, "%s: damaged session file: %s", path, what);
}

static rse_status check_sizes(const char *path, const rse_mapping *map, file_view *view, rse_error *err) {
    const file_header *h = &view->header;
    int64_t size = (int64_t)map->size;
    bool sane = h->position >= 0 && h->tail >= 0 && h->state_bytes >= 0 && h->kv_layers >= 0 &&
                h->kv_width >= 0 && h->position <= size && h->tail <= size && h->state_bytes <= size &&
                h->kv_layers <= RSE_CONFIG_LAYERS && h->kv_width <= 1 << 20 &&
                (h->kv_dtype == RSSM_DTYPE_F32 || h->kv_dtype == RSSM_DTYPE_BF16);
    if (!sane) {
        return damaged(path, "a number in its header is out of range", err);
    }
    view->kv_bytes = h->kv_dtype == RSSM_DTYPE_BF16 ? 2 : 4;
    int64_t ids = ids_bytes(h->position + h->tail);
    int64_t kv_token = 2 * (int64_t)h->kv_layers * h->kv_width * view->kv_bytes; /* below 2^34 */
    if (h->position > 0 && kv_token > INT64_MAX / 2 / h->position) {
        return damaged(path, "its header asks for more than any file holds", err);
    }
    int64_t expected = (int64_t)sizeof *h + ids + h->state_bytes + h->position * kv_token + 8;
    if (expected != size) {
        return damaged(path, "its length does not match its header", err);
    }
    view->ids = map->data + sizeof *h;
    view->state = view->ids + ids;
    view->kv = view->state + h->state_bytes;
    return RSE_OK;
}

static rse_status open_view(const char *path, const rse_mapping *map, file_view *view, rse_error *err) {
    uint64_t checksum;
    if (map->size < sizeof view->header + sizeof checksum ||
        memcmp(map->data, file_magic, sizeof file_magic) != 0) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: not a session file", path);
    }
    memcpy(&view->header, map->data, sizeof view->header);
    if (view->header.version != FILE_VERSION) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: session file of version %" PRIu32 "; this engine reads %d",
                        path, view->header.version, FILE_VERSION);
    }
    memcpy(&checksum, map->data + map->size - sizeof checksum, sizeof checksum);
    if (XXH3_64bits(map->data, map->size - sizeof checksum) != checksum) {
        return damaged(path, "its checksum does not match", err);
    }
    return check_sizes(path, map, view, err);
}

static rse_status check_model(const char *path, const rse_engine *engine, const file_view *view,
                              rse_error *err) {
    const rse_kv_desc *kv = rse_kv_pool_desc(engine->kv);
    const file_header *h = &view->header;
    if (h->fingerprint != engine->model->fingerprint || h->kv_layers != kv->layers ||
        h->kv_width != kv_width(engine)) {
        return rse_fail(err, RSE_ERROR_MISMATCH,
                        "%s: session of another model (fingerprint %016" PRIx64 "; this one's is %016" PRIx64
                        ")",
                        path, h->fingerprint, engine->model->fingerprint);
    }
    if (h->position > engine->model->config.max_positions) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: %lld tokens; the model takes %d", path,
                        (long long)h->position, engine->model->config.max_positions);
    }
    for (int64_t i = 0; i < h->position + h->tail; i++) {
        int32_t id;
        memcpy(&id, view->ids + i * (int64_t)sizeof id, sizeof id);
        if (id < 0 || id >= engine->model->config.vocab) {
            return damaged(path, "a token is outside the vocabulary", err);
        }
    }
    return RSE_OK;
}

/* One layer's keys or values of some tokens as f32. */
static void get_values(const file_view *view, int64_t half, int64_t start, int64_t tokens, float *values) {
    int64_t width = view->header.kv_width;
    const uint8_t *from = view->kv + (half * view->header.position + start) * width * view->kv_bytes;
    int32_t dtype = view->header.kv_dtype == RSSM_DTYPE_BF16 ? RSE_DTYPE_BF16 : RSE_DTYPE_F32;
    rse_convert_to_f32(dtype, from, tokens * width, values);
}

static rse_status load_kv(rse_session *session, const file_view *view, rse_error *err) {
    rse_engine *engine = session->engine;
    int64_t width = view->header.kv_width;
    int64_t position = view->header.position;
    RSE_TRY(rse_kv_seq_reserve(engine->kv, &session->kv, 0, position, err));
    float *piece = malloc((size_t)(2 * PIECE_TOKENS * width) * sizeof *piece);
    if (piece == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory to load keys and values");
    }
    float *values = piece + PIECE_TOKENS * width;
    for (int32_t layer = 0; layer < view->header.kv_layers; layer++) {
        for (int64_t start = 0; start < position; start += PIECE_TOKENS) {
            int64_t tokens = position - start < PIECE_TOKENS ? position - start : PIECE_TOKENS;
            get_values(view, 2 * layer, start, tokens, piece);
            get_values(view, 2 * layer + 1, start, tokens, values);
            rse_kv_write(engine->kv, &session->kv, layer, start, tokens, piece, width, values, width);
        }
    }
    free(piece);
    return RSE_OK;
}

static rse_status load_ids(rse_session *session, const file_view *view, rse_session_tail *tail,
                           rse_error *err) {
    const file_header *h = &view->header;
    for (int64_t i = 0; i < h->position; i++) {
        int32_t id;
        memcpy(&id, view->ids + i * (int64_t)sizeof id, sizeof id);
        RSE_TRY(rse_ids_append(&session->ids, id, err));
    }
    tail->ids = malloc((size_t)(h->tail + 1) * sizeof *tail->ids);
    if (tail->ids == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for %lld token ids", (long long)h->tail);
    }
    memcpy(tail->ids, view->ids + h->position * (int64_t)sizeof *tail->ids,
           (size_t)h->tail * sizeof *tail->ids);
    tail->count = h->tail;
    tail->seed = h->seed;
    return RSE_OK;
}

static rse_status restore(rse_session *session, const file_view *view, rse_session_tail *tail, rse_error *err) {
    const rse_engine *engine = session->engine;
    RSE_TRY(rse_session_reset(session, view->header.id, err));
    RSE_TRY(load_ids(session, view, tail, err));
    RSE_TRY(load_kv(session, view, err));
    session->position = view->header.position;
    RSE_TRY(rse_session_import(session, view->state, view->header.state_bytes, err));
    return rse_shadow_restart(engine->shadow, session, err);
}

rse_status rse_session_load(rse_session *session, const char *path, rse_session_tail *tail, rse_error *err) {
    *tail = (rse_session_tail){0};
    RSE_TRY(check_method(session, err));
    rse_mapping map;
    RSE_TRY(rse_file_map(path, &map, err));
    file_view view = {0};
    rse_status status = open_view(path, &map, &view, err);
    if (status == RSE_OK) {
        status = check_model(path, session->engine, &view, err);
    }
    if (status == RSE_OK) {
        status = restore(session, &view, tail, err);
        if (status != RSE_OK) { /* an empty session is left, not half of one */
            free(tail->ids);
            *tail = (rse_session_tail){0};
            rse_error ignored;
            session->broken = rse_session_reset(session, session->id, &ignored) != RSE_OK;
        }
    }
    rse_file_unmap(&map);
    return status;
}
