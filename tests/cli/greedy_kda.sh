# SPDX-License-Identifier: Apache-2.0
# Greedy ids of tiny-kda as JSON, the same for every method; and with every draft checked, trees too.
echo '14 268 1056 322 261 790 431 11' >ids
replayssm run tiny-kda --ids ids -n 24 --temp 0 --json --verbose --method replay 2>/dev/null | tee replay
for words in '--method conventional' '--window 7' '--check' '--speculate ngram --draft 3 --tree 2 --check'; do
    # shellcheck disable=SC2086
    replayssm run tiny-kda --ids ids -n 24 --temp 0 --json $words >other
    [ "$(sed 's/.*"ids":\(\[[^]]*\]\).*/\1/' other)" = "$(sed 's/.*"ids":\(\[[^]]*\]\).*/\1/' replay)" ] && echo "$words: the same"
done
