# SPDX-License-Identifier: Apache-2.0
# What bends and ends a text: penalties, stop strings, logprobs; and options that would do nothing.
replayssm run -p 'It was' -n 30 --temp 0 | head -n 1
replayssm run -p 'It was' -n 30 --temp 0 --stop man --stop ' good thing to have' | head -n 1
replayssm run -p 'It was' -n 30 --temp 0 --stop '. It' --speculate mtp --draft 3 --json | sed 's/.*"text":\("[^"]*"\),"finish":\("[^"]*"\).*/\1 \2/'
replayssm run -p 'It was' -n 30 --temp 0 --repeat-penalty 1.5 --frequency-penalty 2 | head -n 1
replayssm run -p 'It was' -n 30 --temp 0 --repeat-penalty 1.5 --frequency-penalty 2 --speculate ngram --draft 3 | head -n 1
replayssm run -p 'It was' -n 2 --temp 0 --logprobs 2 --json | sed 's/\(-[0-9]*\.[0-9]\)[0-9]*/\1/g; s/.*\("logprobs".*\),"tokens_per_second.*/\1/'
for words in '--logprobs 2' '--tree 2' '--draft 3' '--system x' '--no-think' '--chat --stop x' '--stop' '--presence-penalty 3' \
    '--repeat-penalty 0' '--logprobs 21 --json' '--slots -1' '--kv-memory 0.5'; do
    # shellcheck disable=SC2086
    replayssm run -p x $words </dev/null
    echo "exit $?" >&2
done
replayssm run -p x --stop ''
