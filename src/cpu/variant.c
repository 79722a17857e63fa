/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of one instruction set; this file is compiled once for each, with RSSM_VARIANT_<ISA> and its flags. */
#include "cpu/vec.h"

#include "cpu/scan.inl.h"

#include "cpu/prefill.inl.h"

#define NEEDS_(isa, needs) enum { needs_of_##isa = (int)(needs) };
#define RSSM_CPU(isa, needs) NEEDS_(isa, needs)
#include "kernels.def"

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

/* Every entry runs with subnormals flushed, so that the fold and the conventional step treat them alike. */
static void decode(const rssm_call *call, const rssm_row *row, int32_t unit, float *scratch) {
    unsigned mode = v16_flush_subnormals();
    decode_unit(call, row, unit, scratch);
    v16_restore_subnormals(mode);
}

static void prefill(const rssm_call *call, const rssm_row *row, int32_t unit, float *scratch) {
    unsigned mode = v16_flush_subnormals();
    prefill_unit(call, row, unit, scratch);
    v16_restore_subnormals(mode);
}

static void fold(const rssm_fold *job, int32_t unit, float *scratch) {
    unsigned mode = v16_flush_subnormals();
    fold_unit(job, unit, scratch);
    v16_restore_subnormals(mode);
}

static void load(const rssm_move *job, int32_t unit, float *scratch) {
    unsigned mode = v16_flush_subnormals();
    load_unit(job, unit, scratch);
    v16_restore_subnormals(mode);
}

static void store(const rssm_move *job, int32_t unit, float *scratch) {
    unsigned mode = v16_flush_subnormals();
    store_unit(job, unit, scratch);
    v16_restore_subnormals(mode);
}

static void copy(const rssm_move *job, int32_t unit, float *scratch) {
    unsigned mode = v16_flush_subnormals();
    copy_unit(job, unit, scratch);
    v16_restore_subnormals(mode);
}

extern const rssm_kernels RSSM_NAME(rssm_kernels);
const rssm_kernels RSSM_NAME(rssm_kernels) = {
    .isa = TEXT(RSSM_VARIANT),
    .needs = RSSM_CONCAT3(needs, _of_, RSSM_VARIANT),
    .decode_unit = decode,
    .prefill_unit = prefill,
    .fold_unit = fold,
    .load_unit = load,
    .store_unit = store,
    .copy_unit = copy,
};
