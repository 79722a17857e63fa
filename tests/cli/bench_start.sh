# SPDX-License-Identifier: Apache-2.0
# bench start: time to the first token, and memory beside the sum that a model may take.
replayssm bench start "$MODELS/tiny-kda" --repeats 2 --threads 1 --json rows | sed -E 's/ +/ /g'
grep -oE '"(operation|starts|weight_bytes)": [^,]*' rows
replayssm bench start nowhere
echo "exit $?" >&2
