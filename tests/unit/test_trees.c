/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trees of drafts through the engine: every token of a tree gives the logits that a chain of its path gives,
 * and going on from a chosen path is going on from that chain, bit for bit, the shadow watching.
 */
#include "model_fixture.h"

enum { NODES = 7, TREES = 4, PROMPT = 29 };

static const int32_t trees[TREES][NODES] = {
    {-1, 0, 0, 1, 1, 2, 4}, {-1, 0, 1, 2, 0, 4, 5}, {-1, -1, -1, 0, 2, 4, 4}, {-1, 0, 1, 2, 3, 4, 5}};

/* One node: a fork that runs its path as a chain, and a fork that runs the tree and chooses the path. */
static void compare_node(rse_engine *engine, const golden *g, rse_session *const s[3], const int32_t *parents,
                         int32_t node, float *logits) {
    size_t vocab = (size_t)vocab_of(engine);
    float *tree = logits, *chain = logits + NODES * vocab;
    const int32_t *drafts = g->tokens + 1000;
    int32_t path[NODES], tokens[NODES], n = path_to(parents, node, path);
    for (int32_t i = 0; i < n; i++) {
        tokens[i] = drafts[path[i]];
    }
    OK(rse_session_copy(s[1], s[0], 5, &err));
    OK(rse_session_copy(s[2], s[0], 5, &err));
    rse_row rows[2] = {
        {.session = s[1], .tokens = drafts, .count = NODES, .outputs = NODES, .parents = parents},
        {.session = s[2], .tokens = tokens, .count = n, .outputs = n}};
    OK(rse_engine_step(engine, rows, 2, logits, NULL, &err));
    assert_memory_equal(tree + (size_t)node * vocab, chain + (size_t)(n - 1) * vocab, vocab * sizeof *tree);
    OK(rse_session_choose(s[1], path, n, &err));
    assert_int_equal(rse_session_pending(s[1]), n);
    assert_memory_equal(rse_session_ids(s[1]), rse_session_ids(s[2]),
                        (size_t)(PROMPT + 1 + n) * sizeof *tokens);
    for (int32_t t = 0; t < 3; t++) {
        decode_row(s[1], engine, drafts[20 + t], tree);
        decode_row(s[2], engine, drafts[20 + t], chain);
        assert_memory_equal(tree, chain, vocab * sizeof *tree);
    }
}

static void trees_are_their_paths(void **state) {
    (void)state;
    for (int32_t m = 0; m < 2 * MODELS; m++) {
        golden g = golden_open(model_names[m % MODELS]);
        rse_engine *engine =
            engine_open(model_names[m % MODELS],
                        (rse_engine_options){.sessions = 3,
                                             .step_tokens = NODES,
                                             .window = 5,
                                             .io_dtype = m < MODELS ? RSSM_DTYPE_F32 : RSSM_DTYPE_BF16,
                                             .check = true});
        rse_session *s[3];
        for (int32_t i = 0; i < 3; i++) {
            s[i] = session_open(engine, 5);
        }
        float *logits = malloc(2 * NODES * (size_t)vocab_of(engine) * sizeof *logits);
        prompt_row(s[0], engine, g.tokens, PROMPT, NULL);
        decode_row(s[0], engine, g.tokens[PROMPT], NULL);
        OK(rse_session_commit(s[0], RSE_ACCEPT_ALL, &err));
        for (int32_t i = 0; i < TREES; i++) {
            for (int32_t node = 0; node < NODES; node++) {
                compare_node(engine, &g, s, trees[i], node, logits);
            }
        }
        assert_true(rse_engine_checked(engine) > 0);
        free(logits);
        rse_safetensors_close(g.files);
        rse_engine_close(engine);
    }
}

/* Nothing is changed by a tree, a path or a count that cannot be. */
static void bad_trees_are_refused(void **state) {
    (void)state;
    golden g = golden_open("tiny-gdn");
    rse_engine *engine = engine_open("tiny-gdn", (rse_engine_options){.step_tokens = 4});
    rse_session *s = session_open(engine, 0);
    const int32_t late[3] = {-1, 2, 0}, low[3] = {-2, 0, 0}, fork[3] = {-1, 0, 0}, wrong[2] = {1, 2},
                  none[2] = {0, 3};
    rse_row row = {.session = s, .tokens = g.tokens, .count = 3, .prompt = true, .parents = fork};
    REFUSED(RSE_ERROR_USAGE, "prompt", rse_engine_step(engine, &row, 1, NULL, NULL, &err));
    row.prompt = false;
    row.parents = late;
    REFUSED(RSE_ERROR_USAGE, "parent of token 1", rse_engine_step(engine, &row, 1, NULL, NULL, &err));
    row.parents = low;
    REFUSED(RSE_ERROR_USAGE, "parent of token 0", rse_engine_step(engine, &row, 1, NULL, NULL, &err));
    REFUSED(RSE_ERROR_USAGE, "1 tokens", rse_session_choose(s, NULL, 1, &err));
    row.parents = fork;
    OK(rse_engine_step(engine, &row, 1, NULL, NULL, &err));
    REFUSED(RSE_ERROR_USAGE, "4 tokens", rse_session_choose(s, NULL, 4, &err));
    REFUSED(RSE_ERROR_USAGE, "-1 tokens", rse_session_choose(s, NULL, -1, &err));
    REFUSED(RSE_ERROR_USAGE, "path", rse_session_choose(s, NULL, 3, &err)); /* 2 does not follow 1 */
    REFUSED(RSE_ERROR_USAGE, "path", rse_session_choose(s, wrong, 2, &err));
    REFUSED(RSE_ERROR_USAGE, "path", rse_session_choose(s, none, 2, &err));
    assert_int_equal(rse_session_pending(s), 3);
    const int32_t path[2] = {0, 2};
    OK(rse_session_choose(s, path, 2, &err));
    OK(rse_session_commit(s, RSE_ACCEPT_ALL, &err));
    assert_int_equal(rse_session_position(s), 2);
    assert_int_equal(rse_session_ids(s)[1], g.tokens[2]);
    rse_safetensors_close(g.files);
    rse_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trees_are_their_paths),
        cmocka_unit_test(bad_trees_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
