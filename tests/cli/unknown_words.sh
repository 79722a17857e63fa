# SPDX-License-Identifier: Apache-2.0
# Words that do not exist, one after another; each is a usage error.
for words in 'fly' 'run --windo' 'run --unknown' 'run -x' 'eval ppl' 'eval' 'bench nothing' 'inspect tiny-gdn tiny-mamba2'; do
    echo "---- $words" >&2
    # shellcheck disable=SC2086
    replayssm $words
    echo "exit $?" >&2
done
