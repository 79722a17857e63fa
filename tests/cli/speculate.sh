# SPDX-License-Identifier: Apache-2.0
# Drafting changes no token, greedily and at a temperature, whoever drafts and however many; every flush is the
# conventional one.
ids_of() { sed 's/"text".*//; s/.*"ids":\(\[[^]]*\]\).*/\1/'; }
for temp in 0 0.9; do
    replayssm run -p 'The captain said' -n 40 --temp $temp --seed 3 --method replay --json | ids_of >plain
    for words in '--speculate ngram' '--speculate mtp --draft 3' '--speculate mtp --draft 2 --tree 3' \
        '--speculate model:tiny-mamba2 --draft 4' '--speculate mtp --draft 7 --exact --window 9' '--speculate ngram --draft 0'; do
        # shellcheck disable=SC2086
        replayssm run -p 'The captain said' -n 40 --temp $temp --seed 3 --json --check $words >other
        ids_of <other >ids
        cmp -s ids plain && grep -q '"identical":true' other && echo "$temp $words: the same"
    done
done
replayssm run -p 'The captain said' -n 40 --temp 0 --method replay --speculate mtp --draft 3 --json
replayssm run -p 'The captain said' -n 40 --temp 0 --method replay --speculate mtp --draft 3 | tail -n 1
