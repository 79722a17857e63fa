# SPDX-License-Identifier: Apache-2.0
# Values outside their limits: the sentence has the option, the value and the limits.
for words in '--window 0' '--window 65' '--window x' '--window' '--device cuda' '--method fast' '--io f16' \
    '--threads -1' '--threads 5000' '-n -1' '--temp -0.5' '--temp nan' '--top-k -1' '--top-p 0' '--top-p 1.5' '--min-p 2' \
    '--seed -1' '--seed 18446744073709551616' '--batch 0'; do
    # shellcheck disable=SC2086
    replayssm run -p x $words
    echo "exit $?" >&2
done
