/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts attention into tasks: one kv head, some neighbouring tokens of one row. */
#include "math/attention.h"

#include <replayssm/base.h>

#include "math/math_ops.h"

/* Queries of a task, if a token does not have more: enough to pass over keys and values in the cache several
 * times. */
enum { TASK_QUERIES = 32 };

typedef struct attention_job {
    const rse_math_ops *ops;
    const rse_attention_args *args;
    int32_t group;        /* query heads of a kv head */
    int64_t block_tokens; /* tokens of a task */
    int64_t blocks;       /* of the longest row; shorter rows have tasks that do nothing */
} attention_job;

/* Tasks are numbered by kv head, then block, then row. The later tokens are, the longer they take: early and
   late blocks alternate, so that the pool's contiguous ranges of tasks weigh the same. */
static void attention_task(void *arg, int64_t task) {
    const attention_job *job = arg;
    const rse_attention_args *args = job->args;
    const rse_kv_desc *desc = rse_kv_pool_desc(args->pool);
    const rse_attention_row *row = &args->rows[task % args->row_count];
    int64_t turn = task / args->row_count % job->blocks, head = task / args->row_count / job->blocks;
    int64_t block = turn % 2 == 0 ? turn / 2 : job->blocks - 1 - turn / 2;
    int64_t first = block * job->block_tokens, left = row->tokens - first;
    if (left <= 0) {
        return;
    }
    int64_t tokens = left < job->block_tokens ? left : job->block_tokens, q_head = head * job->group;
    int64_t head_elems = rse_kv_head_elements(desc);
    int64_t offset = head * head_elems * (desc->dtype == RSSM_DTYPE_BF16 ? 2 : 4);
    rse_attend_args a = {
        .pages = row->seq->pages,
        .keys = (const char *)rse_kv_keys(args->pool, args->layer, 0) + offset,
        .values = (const char *)rse_kv_values(args->pool, args->layer, 0) + offset,
        .page_stride = 2 * desc->kv_heads * head_elems,
        .head_dim = desc->head_dim,
        .dtype = desc->dtype,
        .scale = args->scale,
        .start = row->start + first,
        .queries = tokens * job->group,
        .group = job->group,
        .q = args->q + (row->first + first) * args->q_stride + q_head * args->q_head_stride,
        .q_stride = args->q_stride,
        .q_head_stride = args->q_head_stride,
        .out = args->out + (row->first + first) * args->out_stride + q_head * desc->head_dim,
        .out_stride = args->out_stride,
    };
    job->ops->attend(&a);
}

void rse_attention(const rse_math *math, const rse_attention_args *args) {
    int32_t kv_heads = rse_kv_pool_desc(args->pool)->kv_heads;
    attention_job job = {.ops = rse_math_table(math), .args = args, .group = args->heads / kv_heads};
    job.block_tokens = job.group < TASK_QUERIES ? TASK_QUERIES / job.group : 1;
    for (int64_t i = 0; i < args->row_count; i++) {
        int64_t blocks = (args->rows[i].tokens + job.block_tokens - 1) / job.block_tokens;
        job.blocks = blocks > job.blocks ? blocks : job.blocks;
    }
    rse_pool_run(rse_math_pool(math), kv_heads * job.blocks * args->row_count, attention_task, &job);
}
