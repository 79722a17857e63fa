# SPDX-License-Identifier: Apache-2.0
# Drafting with narrow states: in exact mode, where steps end at flush boundaries, a drafted token reads the copy that
# plain decoding reads, so chains and trees change no token, whatever the formats.
ids_of() { sed 's/"text".*//; s/.*"ids":\(\[[^]]*\]\).*/\1/'; }
for formats in '--checkpoint f16 --rounding stochastic --read-copy nvfp4' '--checkpoint f8 --rounding stochastic' '--read-copy int8'; do
    # shellcheck disable=SC2086
    replayssm run -p 'The captain said' -n 40 --temp 0.9 --seed 3 --method replay --json $formats | ids_of >plain
    for words in '--speculate ngram' '--speculate mtp --draft 3' '--speculate mtp --draft 2 --tree 3'; do
        # shellcheck disable=SC2086
        replayssm run -p 'The captain said' -n 40 --temp 0.9 --seed 3 --method replay --json --exact $formats $words | ids_of >ids
        cmp -s ids plain && echo "$formats $words: the same"
    done
    # a state per draft is copied back in any format
    # shellcheck disable=SC2086
    replayssm run -p 'The captain said' -n 40 --temp 0.9 --seed 3 --method conventional --json $formats | ids_of >plain
    # shellcheck disable=SC2086
    replayssm run -p 'The captain said' -n 40 --temp 0.9 --seed 3 --method snapshot --json $formats --speculate mtp --draft 3 |
        ids_of >ids
    cmp -s ids plain && echo "$formats snapshot: the same"
done
