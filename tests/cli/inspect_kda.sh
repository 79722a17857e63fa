# SPDX-License-Identifier: Apache-2.0
# Kimi Delta Attention, latent attention and experts.
replayssm inspect tiny-kda --window 32 --io bf16 --method replay --batch 3 --threads 1
