# SPDX-License-Identifier: Apache-2.0
# 5 + 9 tokens over a session file are the 14 tokens of one run; another method, window and io are converted.
ids() {
    sed 's/.*"ids":\[\([^]]*\)\].*/\1/'
}
replayssm run -p 'In the morning' -n 14 --seed 11 --json | ids >whole
replayssm run -p 'In the morning' -n 5 --seed 11 --session s --json >first
cp s kept
replayssm run -n 9 --session s --json | ids >rest
cmp rest whole && echo "continued as if never stopped"
for words in '--method conventional' '--window 3' '--window 64 --threads 1' '--io bf16'; do
    cp kept s
    # shellcheck disable=SC2086
    replayssm run -n 9 --session s $words --json >converted && echo "$words: continued"
    case $words in
    *bf16*) ;;
    *) ids <converted | cmp - whole && echo "$words: the same ids" ;;
    esac
done
