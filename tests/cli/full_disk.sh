# SPDX-License-Identifier: Apache-2.0
# Output that cannot be written is a failure.
replayssm --version >/dev/full
