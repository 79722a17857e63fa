# SPDX-License-Identifier: Apache-2.0
# Another model, with every option that changes the plan.
replayssm inspect tiny-mamba2 --window 32 --io bf16 --method replay --batch 3 --threads 1
