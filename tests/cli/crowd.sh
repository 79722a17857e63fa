# SPDX-License-Identifier: Apache-2.0
# A batch over fewer slots, in small steps, with too few pages, and with drafts: each sequence is what it is in a batch
# with room for all, and the prompt is read once.
text() { sed 's/.*"sequences"://; s/],"tokens_per_second.*//'; }
prompt='The captain said that it was a very long way from the harbour to the house of his brother, who had been'
replayssm run -p "$prompt" -n 40 --batch 6 --method replay --json >all
sed 's/.*\("prompt_tokens_recalled":[0-9]*,"parked":[0-9]*\).*/\1/' all
text <all >expected
for words in '--slots 2' '--step-budget 5' '--slots 4 --step-budget 1' '--prefix-cache 0' '--speculate ngram --draft 3' \
    '--threads 1 --check'; do
    # shellcheck disable=SC2086
    replayssm run -p "$prompt" -n 40 --batch 6 --method replay --json $words | text | cmp - expected && echo "$words: the same"
done
replayssm run -p "$prompt" -n 300 --batch 3 --method replay --kv-memory 1 --ignore-eos --json | sed 's/.*"parked":0,.*/never parked/; s/.*"parked":.*/parked/'
replayssm run -p "$prompt" -n 600 --kv-memory 1 --ignore-eos >/dev/null 2>said || sed 's/[0-9]* pages/* pages/' said
