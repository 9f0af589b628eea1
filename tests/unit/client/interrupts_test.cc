// The signals that end a waiting trainctl, and those that its caller made it ignore.
#include "client/interrupts.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace trainyard::client {
namespace {

// Sets the disposition of a signal for the duration of a test.
class Disposition {
 public:
  Disposition(int number, sighandler_t handler) : number_(number), before_(signal(number, handler)) {}
  ~Disposition() { signal(number_, before_); }
  Disposition(const Disposition&) = delete;
  Disposition& operator=(const Disposition&) = delete;

 private:
  const int number_;
  const sighandler_t before_;
};

TEST(Interrupts, SignalThatTheCallerIgnores_HasNoEffect) {
  const Disposition interrupt(SIGINT, SIG_IGN);
  const Disposition hangup(SIGHUP, SIG_DFL);
  const Disposition termination(SIGTERM, SIG_DFL);

  const sigset_t set = InterruptSet();

  EXPECT_EQ(sigismember(&set, SIGINT), 0);
  EXPECT_EQ(sigismember(&set, SIGHUP), 1);
  EXPECT_EQ(sigismember(&set, SIGTERM), 1);
}

}  // namespace
}  // namespace trainyard::client
