// The checks of a job that need the files and the memory of this machine.
#include "client/local_checks.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "tests/unit/temporary_folder.h"

namespace trainyard::client {
namespace {

class LocalChecksTest : public testing::Test {
 protected:
  LocalChecksTest() {
    Write("full.txt", std::string(1000, 'x'));
    Write("empty.txt", "");
    Write("short.txt", std::string(16, 'x'));
    std::filesystem::create_directories(folder_ + "/hollow/inner");
    spec_.mutable_train()->mutable_model()->set_context(16);
    spec_.mutable_train()->mutable_data()->set_validation(0);
  }

  void Write(const std::string& name, const std::string& text) { std::ofstream(folder_ + "/" + name) << text; }

  // The errors for these entries, with the test's folder replaced by DIR.
  std::string Errors(const std::vector<std::string>& entries) {
    auto* text = spec_.mutable_train()->mutable_data()->mutable_text();
    text->Clear();
    for (const std::string& entry : entries) *text->Add() = folder_ + "/" + entry;
    Problems problems;
    CheckText(spec_, {}, &problems);
    std::string errors(problems.ToStatus().message());
    for (size_t at; (at = errors.find(folder_)) != std::string::npos;) errors.replace(at, folder_.size(), "DIR");
    return errors;
  }

  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
  v1::JobSpec spec_;
};

TEST_F(LocalChecksTest, EnoughText_IsAccepted) {
  EXPECT_EQ(Errors({"full.txt"}), "");
  EXPECT_EQ(Errors({"*.txt"}), "");
  EXPECT_EQ(Errors({"."}), "");
  EXPECT_EQ(Errors({"short.txt", "full.txt"}), "");
}

TEST_F(LocalChecksTest, EveryWrongEntry_IsReported) {
  EXPECT_EQ(Errors({"none.txt", "*.md", "empty.txt", "hollow", "full.txt"}),
            "train.data.text: DIR/none.txt does not exist\n"
            "train.data.text: DIR/*.md matches no file\n"
            "train.data.text: DIR/empty.txt is empty\n"
            "train.data.text: DIR/hollow contains no text");
}

TEST_F(LocalChecksTest, ALinkToAFolderInsideOfAFolder_IsNamed) {
  std::filesystem::create_directory_symlink(folder_, folder_ + "/hollow/link");

  EXPECT_EQ(Errors({"hollow"}),
            "train.data.text: DIR/hollow/link is a link to a folder, which is not followed; name its target, or remove "
            "the link");
}

TEST_F(LocalChecksTest, TextShorterThanASequence_IsRefused) {
  EXPECT_EQ(
      Errors({"short.txt"}),
      "train.data.text: has 16 bytes, of which 16 are for training, but a sequence needs 17 (train.batch.length + 1). "
      "Add text or reduce train.batch.length");
}

TEST_F(LocalChecksTest, ValidationShorterThanASequence_IsRefusedIfUsed) {
  spec_.mutable_train()->mutable_data()->set_validation(0.01);
  EXPECT_EQ(Errors({"full.txt"}), "");

  spec_.mutable_train()->mutable_evaluate()->set_every_steps(10);
  EXPECT_EQ(Errors({"full.txt"}),
            "train.data.validation: leaves 10 of 1000 bytes for evaluation, but a sequence needs 17 "
            "(train.batch.length + 1). "
            "Add text, increase this share, or set train.evaluate.every_steps to 0");
}

TEST_F(LocalChecksTest, HeldOutFiles_MustHoldASequence_IfTheyAreUsed) {
  spec_.mutable_train()->mutable_data()->add_held_out(folder_ + "/short.txt");
  EXPECT_EQ(Errors({"full.txt"}), "");

  spec_.mutable_train()->mutable_evaluate()->set_every_steps(10);
  EXPECT_EQ(Errors({"full.txt"}),
            "train.data.held_out: has 16 bytes, but a sequence needs 17 (train.batch.length + 1). Add text or reduce "
            "train.batch.length");
  spec_.mutable_train()->mutable_data()->set_held_out(0, folder_ + "/none.txt");
  EXPECT_EQ(Errors({"full.txt"}), "train.data.held_out: DIR/none.txt does not exist");
}

TEST_F(LocalChecksTest, ModelLargerThanMemory_IsRefused) {
  v1::Model* model = spec_.mutable_train()->mutable_model();
  model->set_layers(12);
  model->set_heads(12);
  model->set_width(768);
  spec_.mutable_resources()->set_ranks(2);
  Problems problems;
  CheckMemory(spec_, uint64_t{2} << 30, {}, &problems);
  EXPECT_EQ(
      problems.ToStatus().message(),
      "train.model: has 85264896 parameters; with gradients and optimizer state 2 ranks need 2.5 GiB, but this machine "
      "has 2.0 GiB; if the ranks use GPUs, set resources.device: cuda");

  Problems none;
  CheckMemory(spec_, uint64_t{4} << 30, {}, &none);
  spec_.mutable_parallel()->set_data(v1::DATA_PARALLEL_FSDP);  // both ranks share one copy: 1.3 GiB
  CheckMemory(spec_, uint64_t{2} << 30, {}, &none);
  CheckMemory(spec_, 0, {}, &none);
  EXPECT_TRUE(none.ok());
}

// The state is in the memory of the GPUs, unless it is offloaded.
TEST_F(LocalChecksTest, MemoryOfAJobOnGpus_IsWhatItOffloads) {
  v1::Model* model = spec_.mutable_train()->mutable_model();
  model->set_layers(12);
  model->set_heads(12);
  model->set_width(768);
  spec_.mutable_resources()->set_device(v1::DEVICE_CUDA);
  Problems none;
  CheckMemory(spec_, uint64_t{64} << 20, {}, &none);
  EXPECT_TRUE(none.ok()) << none.ToStatus();

  spec_.mutable_parallel()->mutable_offload()->set_optimizer(true);
  Problems problems;
  CheckMemory(spec_, uint64_t{64} << 20, {}, &problems);
  const std::string text(problems.ToStatus().message());
  EXPECT_NE(text.find("the offloaded state of 1 rank needs "), std::string::npos) << text;
  EXPECT_NE(text.find(", but this machine has 64.0 MiB"), std::string::npos) << text;
}

TEST_F(LocalChecksTest, InitialWeights_MustExistAndBeSafetensors) {
  Write("weights.safetensors", std::string("\x02\0\0\0\0\0\0\0{}", 10));
  auto errors = [&](const std::string& path) {
    spec_.mutable_train()->mutable_model()->set_init_from(path);
    Problems problems;
    CheckInitialWeights(spec_, {}, &problems);
    return std::string(problems.ToStatus().message());
  };

  EXPECT_EQ(errors(folder_ + "/weights.safetensors"), "");
  EXPECT_EQ(errors(folder_), absl::StrCat("train.model.init_from: ", folder_,
                                          " has neither a checkpoint (manifest.json) nor a model of transformers "
                                          "(config.json)"));
  Write("config.json", "{}");
  EXPECT_EQ(errors(folder_), "");
  EXPECT_EQ(errors("/no/such/weights"), "train.model.init_from: /no/such/weights does not exist");
  EXPECT_EQ(errors("/etc/passwd"),
            "train.model.init_from: /etc/passwd is not a safetensors file: such a file begins with the length of its "
            "header in 8 bytes and a '{'");
  EXPECT_EQ(errors("/dev/null"), "train.model.init_from: /dev/null is neither a safetensors file nor a folder");
}

TEST_F(LocalChecksTest, FolderOfAdapters_MustHaveWeights) {
  spec_.mutable_train()->mutable_lora()->set_path(folder_);
  auto errors = [&] {
    Problems problems;
    CheckInitialWeights(spec_, {}, &problems);
    return std::string(problems.ToStatus().message());
  };
  EXPECT_EQ(errors(), "") << "the reader of adapter_config.json reports that it is missing";
  Write("adapter_config.json", "{}");

  EXPECT_EQ(errors(), absl::StrCat("train.lora.path: ", folder_, " has no adapter_model.safetensors"));
  Write("adapter_model.safetensors", "");
  EXPECT_EQ(errors(), "");
}

}  // namespace
}  // namespace trainyard::client
