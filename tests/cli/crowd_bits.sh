# SPDX-License-Identifier: Apache-2.0
# A prompt gives the same logprobs, to the last bit, in whatever pieces and beside whatever else it is read.
prompt=$(for i in 1 2 3 4; do printf 'The captain said that it was a very long way from the harbour to the house of his brother. '; done)
for model in tiny-gdn tiny-mamba2 tiny-kda; do
    for budget in 512 100; do
        replayssm run "$model" -p "$prompt" -n 1 --temp 0 --method replay --json --logprobs 1 --batch 6 --prefix-cache 0 \
            --step-budget $budget | grep -o '"logprob": *[-0-9.e]*'
    done | sort -u | wc -l
done
