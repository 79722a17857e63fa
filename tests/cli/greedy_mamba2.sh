# SPDX-License-Identifier: Apache-2.0
# Greedy ids of tiny-mamba2 as JSON: one line, the same for every method and window.
echo '14 268 1056 322 261 790 431 11' >ids
replayssm run tiny-mamba2 --ids ids -n 24 --temp 0 --json --verbose --method replay 2>/dev/null | tee replay
for words in '--method conventional' '--method auto' '--window 1' '--window 7' '--window 64' '--threads 1' '--check'; do
    # shellcheck disable=SC2086
    replayssm run tiny-mamba2 --ids ids -n 24 --temp 0 --json $words >other
    [ "$(sed 's/.*"ids":\(\[[^]]*\]\).*/\1/' other)" = "$(sed 's/.*"ids":\(\[[^]]*\]\).*/\1/' replay)" ] && echo "$words: the same"
done
