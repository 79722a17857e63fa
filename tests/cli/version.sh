# SPDX-License-Identifier: Apache-2.0
# The version, alone on stdout.
replayssm --version
