# SPDX-License-Identifier: Apache-2.0
# Texts that cannot be scored.
try() {
    replayssm eval nll "$@"
    echo "exit $?" >&2
}
echo 7 >one
echo '7 4096' >outside
: >empty
try --ids one
try --ids outside
try --ids empty
try --file missing
try
