/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a model step on the device: one launch for all rows and layers, a warp for each row. */
#include "cuda/device/cursors.cuh"

/* A refused row leaves its slot as it was, but for the mark that makes it a padding row of this step. */
static __device__ void refuse(const rssm_cuda_cache &c, rssm_cursor *cursor, unsigned long long why) {
    if (lane_of() == 0) {
        cursor->row = -1;
        fault(c.words, why);
    }
}

static __device__ void begin_row(const rssm_cuda_begin &call, int row, unsigned long long serial, rssm_cursor *cursor) {
    const rssm_cuda_cache &c = call.cache;
    const int64_t slot = call.batch.slots[row * call.batch.slots_stride];
    int token, tokens;
    const bool within = row_tokens(call.batch, row, call.tokens, &token, &tokens);
    const bool prefill = call.batch.prefill != nullptr && call.batch.prefill[row] != 0;
    if (slot < c.reserved) {
        return;
    }
    if (slot >= c.slots) {
        fault(c.words, RSSM_FAULT_SLOT);
        return;
    }
    rssm_cursor *home = cursor_at(c, slot);
    if (!claim(home, serial)) {
        fault(c.words, RSSM_FAULT_TWICE);
        return;
    }
    copy_cursor(cursor, home);
    const int accepted = call.accepted != nullptr ? call.accepted[row] : 0;
    const bool counted = call.accepted != nullptr && cursor->step != RSSM_STEP_NONE;
    const rssm_progress p = warp_progress(c, slot, cursor->serial);
    unsigned long long why = 0;
    if (cursor->state != RSSM_CURSOR_READY) {
        why = RSSM_FAULT_SLOT;
    } else if (!within || (!prefill && tokens > call.step_tokens)) {
        why = RSSM_FAULT_TOKENS;
    } else if (counted && (accepted < rssm_step_least(cursor) || accepted > cursor->pending)) {
        why = RSSM_FAULT_ACCEPTED;
    } else if (!rssm_step_in_order(cursor, &p, accepted)) {
        why = RSSM_FAULT_FAILED;
    }
    __syncwarp(); /* every lane has read the cursor that one of them changes now */
    if (why != 0) {
        refuse(c, home, why);
        if (lane_of() == 0 && why == RSSM_FAULT_FAILED) {
            home->state = RSSM_CURSOR_FAILED;
            atomicAdd(&c.words->failed_slots, 1ull);
        }
    } else {
        if (lane_of() == 0) {
            const rssm_step_request request = {tokens, prefill || call.conventional, prefill, call.window, serial};
            rssm_step_end(cursor, &c.rows, &p, accepted, nullptr);
            rssm_step_plan(cursor, &request);
            cursor->row = row;
        }
        copy_cursor(home, cursor);
    }
}

static __global__ void __launch_bounds__(CURSOR_WARPS * 32) begin(const __grid_constant__ rssm_cuda_begin call) {
    __shared__ rssm_cursor cursors[CURSOR_WARPS];
    const unsigned long long serial = *(volatile unsigned long long *)&call.cache.words->serial + 1;
    const int warp = threadIdx.x / 32;
    for (int row = blockIdx.x * CURSOR_WARPS + warp; row < call.batch.rows; row += gridDim.x * CURSOR_WARPS) {
        begin_row(call, row, serial, &cursors[warp]);
    }
    end_call(call.cache.words, serial, true);
}

extern "C" int rssm_launch_begin(const rssm_cuda_begin *call, void *stream) {
    int blocks = (call->batch.rows + CURSOR_WARPS - 1) / CURSOR_WARPS;
    blocks = blocks < 1 ? 1 : blocks < 1024 ? blocks : 1024;
    begin<<<(unsigned)blocks, CURSOR_WARPS * 32, 0, (cudaStream_t)stream>>>(*call);
    return (int)cudaGetLastError();
}

extern "C" int rssm_load_begin(void) {
    cudaFuncAttributes unused;
    return (int)cudaFuncGetAttributes(&unused, (const void *)begin);
}
