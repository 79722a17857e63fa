# SPDX-License-Identifier: Apache-2.0
# Prompts that cannot be run.
try() {
    replayssm run -n 2 "$@"
    echo "exit $?" >&2
}
: >empty
echo ' ' >blank
echo '1 2 4096' >outside
echo '1 -2' >negative
echo '1 two 3' >words
echo '99999999999999999999' >huge
try -p ''
try --file empty
try --ids empty
try --ids blank
try --ids outside
try --ids negative
try --ids words
try --ids huge
try --file missing
try --ids missing
try
try -p x --file blank
try -p x --session s --batch 2
try --session s
