/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints of every family with one tensor wrong: missing, under another name, of another dtype, of another
 * shape, or with fewer bytes than its shape has. Each must be refused with a sentence that says where; none may be run.
 */
#include "family_list.h"
#include "model_fixture.h"
#include "model/model.h"

#include <unistd.h>

enum { MOST = 512 };

#ifdef __SANITIZE_ADDRESS__ /* every kind of tensor is met there, but not every one */
enum { EACH = 5 };
#else
enum { EACH = 1 };
#endif
enum { MISSING, RENAMED, RETYPED, RESHAPED, TRUNCATED, WRONGS };
static const char *const wrongs[] = {"missing", "renamed", "of another dtype", "of another shape", "truncated"};

static int32_t other_dtype(int32_t dtype) {
    switch (dtype) {
    case RSE_DTYPE_F32:
        return RSE_DTYPE_I32;
    case RSE_DTYPE_BF16:
        return RSE_DTYPE_U16;
    default:
        return RSE_DTYPE_I8;
    }
}

/* Leaves out, renames or changes tensor `at`; false where that makes no difference. */
static bool spoil(rse_tensor *tensors, size_t *count, size_t at, int32_t wrong, char name[256]) {
    rse_tensor *t = &tensors[at];
    if (strstr(t->name, ".indexer.") != NULL) { /* not read: where it would select everything */
        return false;
    }
    bool optional = strstr(t->name, "input_scale") != NULL; /* scales of activations are not used */
    switch (wrong) {
    case MISSING:
        tensors[at] = tensors[--*count];
        return !optional;
    case RENAMED:
        snprintf(name, 256, "%s.x", t->name);
        t->name = name;
        return true;
    case RETYPED:
        t->dtype = other_dtype(t->dtype);
        return !optional;
    case TRUNCATED: /* once it is written */
        return true;
    default:
        if (t->rank == 0 || optional || (t->rank == 1 && t->shape[0] == 1)) {
            return false;
        }
        t->shape[t->rank - 1]--;
        return true;
    }
}

/* "layers.3." of a name, or the name's last word. */
static void place_of(const char *name, char place[64]) {
    int layer;
    const char *at = strstr(name, "layers.");
    if (at != NULL && sscanf(at, "layers.%d.", &layer) == 1) {
        snprintf(place, 64, "layers.%d.", layer);
        return;
    }
    char whole[256];
    snprintf(whole, sizeof whole, "%s", name);
    char *end = strstr(whole, ".weight");
    if (end != NULL) {
        *end = '\0';
    }
    const char *word = strrchr(whole, '.');
    snprintf(place, 64, "%.63s", word != NULL ? word + 1 : whole);
}

/* Takes a byte off the end of a tensor in the header of a written file. */
static void truncate_tensor(const char *path, const char *name) {
    static char text[1 << 17];
    char wanted[300];
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    size_t length = fread(text, 1, sizeof text - 1, file);
    text[length] = '\0';
    snprintf(wanted, sizeof wanted, "\"%s\":", name);
    char *at = strstr(text + 8, wanted);
    assert_non_null(at);
    at = strstr(at, "data_offsets");
    at = strchr(at, ',') + 1;
    char *end = strchr(at, ']');
    int width = (int)(end - at);
    assert_int_equal(fseek(file, at - text, SEEK_SET), 0);
    fprintf(file, "%*lld", width, strtoll(at, NULL, 10) - 1);
    fclose(file);
}

static void check_family(const char *family) {
    char source[512], directory[64], path[128], command[1024];
    /* thousands of small files, which only memory takes in no time */
    strcpy(directory, access("/dev/shm", W_OK) == 0 ? "/dev/shm/replayssm-XXXXXX" : "/tmp/replayssm-XXXXXX");
    assert_non_null(mkdtemp(directory));
    snprintf(source, sizeof source, RSSM_SOURCE_DIR "/tests/golden/families/%s", family);
    snprintf(command, sizeof command, "cp %s/config.json %s", source, directory);
    assert_int_equal(system(command), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    snprintf(source + strlen(source), sizeof source - strlen(source), "/model.safetensors");
    rse_safetensors *files;
    OK(rse_safetensors_open(source, &files, &err));
    size_t all = rse_safetensors_count(files);
    assert_true(all <= MOST);
    for (size_t at = 0; at < all; at += EACH) {
        for (int32_t wrong = 0; wrong < WRONGS; wrong++) {
            static rse_tensor tensors[MOST];
            char name[256], place[64];
            size_t count = all;
            for (size_t i = 0; i < all; i++) {
                tensors[i] = *rse_safetensors_at(files, i);
            }
            if (!spoil(tensors, &count, at, wrong, name)) {
                continue;
            }
            unlink(path); /* writing over a file waits for the disk on some systems */
            OK(rse_safetensors_write(path, tensors, count, NULL, NULL, &err));
            rse_model *model;
            rse_error err = {0};
            const char *of = rse_safetensors_at(files, at)->name;
            if (wrong == TRUNCATED) {
                truncate_tensor(path, of);
            }
            rse_status status = rse_model_open(directory, &model, &err);
            place_of(of, place);
            if (status == RSE_OK || strstr(err.text, place) == NULL) {
                fail_msg("%s, %s %s: status %d, '%s'", family, of, wrongs[wrong], status, err.text);
            }
        }
    }
    rse_safetensors_close(files);
    snprintf(command, sizeof command, "rm -r %s", directory);
    assert_int_equal(system(command), 0);
}

static void test_every_tensor(void **state) {
    (void)state;
    for (size_t i = 0; i < FAMILIES; i++) {
        check_family(families[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_tensor)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
