/* SPDX-License-Identifier: Apache-2.0 */
#include <replayssm/replayssm.h>
#include <stdio.h>
int main(void) {
    rssm_context *context;
    rssm_status status = rssm_context_create(NULL, &context);
    printf("replayssm %s: %s\n", rssm_version(), rssm_status_string(status));
    rssm_context_destroy(context);
    return status == RSSM_OK ? 0 : 1;
}
