#include "worker/collectives/agreement.h"

namespace trainyard {

AgreedStep Agreement::Read(const AgreementTerms& sum) {
  AgreedStep agreed;
  agreed.tokens = static_cast<uint64_t>(sum.tokens);
  agreed.loss = sum.tokens > 0 ? sum.loss_sum / sum.tokens : 0;
  uint64_t request = static_cast<uint64_t>(sum.request);
  agreed.is_requested = request > last_request_;
  if (agreed.is_requested) last_request_ = request;
  agreed.stop = agreed.is_requested || sum.notice > 0;
  // A failed save cancels a request that needs a save, except if the host asked some rank to leave (`notice`): that
  // rank ends in any case, so the stop stands.
  if (agreed.is_requested && sum.needs_save > 0 && !(sum.notice > 0)) agreed.request_needing_save = request;
  return agreed;
}

}  // namespace trainyard
