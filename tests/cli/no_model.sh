# SPDX-License-Identifier: Apache-2.0
# Folders that are no models.
try() {
    replayssm run "$1" -p x -n 1
    echo "exit $?" >&2
}
mkdir empty
try empty
try missing
try ./missing
echo >file
try file
