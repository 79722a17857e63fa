# SPDX-License-Identifier: Apache-2.0
# Ways to draft that cannot be: named, nothing run.
mkdir strange
cp -r "$MODELS/tiny-mamba2/." strange
sed 's/"version"/"version" /' "$MODELS/tiny-mamba2/tokenizer.json" >strange/tokenizer.json
for words in '--speculate mpt' '--speculate ngram --draft 16' '--speculate ngram --draft x' '--draft -1' '--tree 0' \
    '--speculate mtp --draft 7 --tree 3' '--speculate mtp --method conventional' '--exact --method conventional' \
    '--method snapshot --speculate mtp --draft 2 --tree 2' '--method snapshot --check' '--method snapshot --session file' \
    '--speculate model:nowhere' '--speculate model:./strange' 'tiny-mamba2 --speculate mtp'; do
    # shellcheck disable=SC2086
    replayssm run -p x -n 3 $words
    echo "exit $?" >&2
done
