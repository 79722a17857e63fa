# SPDX-License-Identifier: Apache-2.0
# MODEL is the bundled tiny-gdn by default.
replayssm inspect --method replay
