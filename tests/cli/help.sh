# SPDX-License-Identifier: Apache-2.0
# The help of the command and of each subcommand.
replayssm --help
for command in run eval inspect bench; do
    echo "---- $command"
    replayssm $command --help
done
