# SPDX-License-Identifier: Apache-2.0
# A conversation, kept in a session and taken up again; what it refuses; and what a model recommends for sampling.
. "$CASES/edit_model"
printf 'Who is there?\n\nTell me more.\n' >lines
replayssm run --chat --system 'Be brief.' -n 8 --temp 0 --check --session talk --verbose <lines 2>said
echo "exit $?"
grep 'tokens of prompts' said
echo 'And then?' >lines
replayssm run --chat -n 8 --temp 0 --session talk --verbose <lines 2>said
grep 'tokens of prompts' said
for words in '--speculate mtp --draft 3' '--speculate ngram --draft 2 --tree 2'; do # drafted, it is the same conversation
    printf 'Who is there?\n\nTell me more.\n' >lines
    # shellcheck disable=SC2086
    replayssm run --chat --system 'Be brief.' -n 8 --temp 0 --check $words <lines
done
replayssm run --chat --batch 2
echo "exit $?" >&2
copy_model tiny-gdn
rm m/tokenizer.json
replayssm run ./m --chat
echo "exit $?" >&2
rm -r m
copy_model tiny-gdn
echo '{"temperature": 0.0, "top_k": 20, "eos_token_id": [2]}' >m/generation_config.json
replayssm run ./m -p 'It was' -n 8 --json | sed 's/.*"text":"\([^"]*\)".*/\1/' >recommended
replayssm run ./m -p 'It was' -n 8 --temp 0 --json | sed 's/.*"text":"\([^"]*\)".*/\1/' >greedy
cmp recommended greedy && echo same
echo '{"temperature": -1}' >m/generation_config.json
replayssm run ./m -p 'It was'
echo "exit $?" >&2
