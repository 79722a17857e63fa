# SPDX-License-Identifier: Apache-2.0
# The mean over the ids but the first, as JSON; methods agree.
i=0
while [ $i -lt 100 ]; do
    echo $(((i * 37 + 11) % 4096))
    i=$((i + 1))
done >ids
replayssm eval nll --ids ids --method replay
replayssm eval nll --ids ids --method conventional --decode
replayssm eval nll --ids ids --method replay --window 5 --decode --check
replayssm eval nll tiny-mamba2 --ids ids --method replay
printf 'Call me Ishmael.' >text
replayssm eval nll --file text --method replay
