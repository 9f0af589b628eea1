#include "checkpoint/hugging_face_folder.h"

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/catalog.h"
#include "checkpoint/foreign_weights.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr char kConfigName[] = "config.json";
constexpr char kWeightsName[] = "model.safetensors";
constexpr char kTensorPrefix[] = "transformer.";
constexpr double kEpsilon = 1e-5;
constexpr int64_t kBytes = 256;  // tokens, where a token is a byte
constexpr uint64_t kConfigBytesMax = 1 << 20;

constexpr char kReadme[] =
    "A GPT-2 model in the form of the Python library transformers.\n\n"
    "Its vocabulary is the 256 values of a byte: token 65 is the byte 65, \"A\". There are no special tokens: neither\n"
    "beginning nor end of a text nor padding. tokenizer.json says just that, so text of any kind is encoded and\n"
    "decoded without loss; a token is one byte of UTF-8, not one character.\n";

std::string TypeWord(absl::string_view dtype) {
  if (dtype == "F64") return "float64";
  if (dtype == "F16") return "float16";
  return dtype == "BF16" ? "bfloat16" : "float32";
}

OrderedJson ConfigOf(const Gpt2Sizes& sizes, absl::string_view dtype) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"dtype", TypeWord(dtype)},
          {"n_layer", sizes.layers},
          {"n_head", sizes.heads},
          {"n_embd", sizes.width},
          {"n_positions", sizes.context},
          {"n_inner", nullptr},
          {"vocab_size", sizes.vocabulary},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", kEpsilon},
          {"embd_pdrop", sizes.dropout},
          {"attn_pdrop", sizes.dropout},
          {"resid_pdrop", sizes.dropout},
          {"initializer_range", 0.02},
          {"scale_attn_weights", true},
          {"scale_attn_by_inverse_layer_idx", false},
          {"reorder_and_upcast_attn", false},
          {"tie_word_embeddings", true},
          {"use_cache", true},
          {"bos_token_id", nullptr},
          {"eos_token_id", nullptr},
          {"pad_token_id", nullptr}};
}

OrderedJson GenerationOf() {
  return {{"bos_token_id", nullptr}, {"eos_token_id", nullptr}, {"pad_token_id", nullptr},
          {"do_sample", true},       {"temperature", 0.8},      {"max_new_tokens", 300}};
}

void AppendUtf8(uint32_t code, std::string& text) {
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else {  // below 0x800 in all that follows
    text += static_cast<char>(0xC0 | code >> 6);
    text += static_cast<char>(0x80 | (code & 0x3F));
  }
}

// A tokenizer that does nothing: its alphabet is what byte-level BPE makes of the 256 bytes (those that print stand for
// themselves, the others for the characters from 256 on), and it merges nothing.
OrderedJson TokenizerOf() {
  OrderedJson vocabulary = OrderedJson::object();
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < kBytes; ++byte) {
    const bool prints = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    std::string letter;
    AppendUtf8(prints ? byte : next++, letter);
    vocabulary[letter] = byte;
  }
  const OrderedJson bytes = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", OrderedJson::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", bytes},
          {"post_processor", nullptr},
          {"decoder", bytes},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocabulary},
            {"merges", OrderedJson::array()}}}};
}

absl::Status WriteText(const std::string& path, absl::string_view text, FileSystem& file_system) {
  ASSIGN_OR_RETURN(auto file, file_system.Create(path));
  RETURN_IF_ERROR(file->Append(text));
  return file->Sync();
}

absl::Status WriteWeights(const Checkpoint& checkpoint, const Gpt2Sizes& sizes, const std::string& dtype,
                          const std::string& path, FileSystem& file_system) {
  std::vector<TensorInfo> infos;
  for (auto& [name, shape] : Gpt2Parameters(sizes)) {
    infos.push_back({.name = absl::StrCat(kTensorPrefix, name), .dtype = dtype, .shape = shape});
  }
  ASSIGN_OR_RETURN(auto file, file_system.Create(path));
  RETURN_IF_ERROR(file->Append(SafetensorsHeader(infos, {{"format", "pt"}})));
  std::string bytes;
  for (const TensorInfo& info : infos) {
    bytes.resize(info.end - info.begin);
    RETURN_IF_ERROR(checkpoint.ReadTensor("parameter", absl::string_view(info.name).substr(strlen(kTensorPrefix)),
                                          dtype, info.shape, absl::MakeSpan(bytes.data(), bytes.size())));
    RETURN_IF_ERROR(file->Append(bytes));
  }
  return file->Sync();
}

// All parameters of the checkpoint have one type; which, the token embedding tells.
absl::StatusOr<std::string> CheckHolds(const Checkpoint& checkpoint, const Gpt2Sizes& sizes) {
  std::vector<WeightInfo> held;
  std::string dtype = "F32";
  for (const ManifestTensor& tensor : checkpoint.manifest().tensors) {
    if (tensor.role != "parameter") continue;
    held.push_back({tensor.name, tensor.dtype, tensor.shape});
    if (tensor.name == "wte.weight") dtype = tensor.dtype;
  }
  absl::Status fits = CheckWeights(held, sizes);
  if (fits.ok()) return dtype;
  return absl::FailedPreconditionError(absl::StrCat(checkpoint.path(), ": ", fits.message()));
}

// Reads keys of config.json and collects what is wrong with them.
class ConfigReader {
 public:
  explicit ConfigReader(const nlohmann::json& json) : json_(json) {}

  int64_t Size(const char* key) {
    auto it = json_.find(key);
    if (it != json_.end() && it->is_number_unsigned() && it->get<uint64_t>() > 0 && it->get<uint64_t>() < 1 << 30) {
      return it->get<int64_t>();
    }
    Problem(key, "a positive number", it);
    return 1;
  }
  double Share(const char* key) {
    auto it = json_.find(key);
    if (it == json_.end()) return 0.1;  // the library's default
    if (it->is_number() && it->get<double>() >= 0 && it->get<double>() < 1) return it->get<double>();
    Problem(key, "a share from 0 to below 1", it);
    return 0;
  }
  // A key that need not be there and may say only this.
  void Expect(const char* key, const nlohmann::json& value) {
    auto it = json_.find(key);
    if (it != json_.end() && !it->is_null() && *it != value) Problem(key, value.dump(), it);
  }
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  void Problem(const char* key, const std::string& expected, nlohmann::json::const_iterator it) {
    const std::string found = it == json_.end() ? "nothing" : it->dump().substr(0, 100);
    problems_.push_back(absl::StrCat(key, ": expected ", expected, ", found ", found));
  }
  const nlohmann::json& json_;
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::pair<std::string, std::vector<int64_t>>> Gpt2Parameters(const Gpt2Sizes& sizes) {
  const int64_t d = sizes.width;
  std::vector<std::pair<std::string, std::vector<int64_t>>> all = {{"wte.weight", {sizes.vocabulary, d}},
                                                                   {"wpe.weight", {sizes.context, d}}};
  for (int64_t layer = 0; layer < sizes.layers; ++layer) {
    auto add = [&](const char* name, std::vector<int64_t> shape) {
      all.emplace_back(absl::StrCat("h.", layer, ".", name), std::move(shape));
    };
    add("ln_1.weight", {d});
    add("ln_1.bias", {d});
    add("attn.c_attn.weight", {d, 3 * d});
    add("attn.c_attn.bias", {3 * d});
    add("attn.c_proj.weight", {d, d});
    add("attn.c_proj.bias", {d});
    add("ln_2.weight", {d});
    add("ln_2.bias", {d});
    add("mlp.c_fc.weight", {d, 4 * d});
    add("mlp.c_fc.bias", {4 * d});
    add("mlp.c_proj.weight", {4 * d, d});
    add("mlp.c_proj.bias", {d});
  }
  all.push_back({"ln_f.weight", {d}});
  all.push_back({"ln_f.bias", {d}});
  return all;
}

absl::Status ExportGpt2(const Checkpoint& checkpoint, const Gpt2Sizes& sizes, const std::string& out,
                        FileSystem& file_system) {
  if (FileExists(out)) return absl::AlreadyExistsError(absl::StrCat(out, " is there already; name a new folder"));
  ASSIGN_OR_RETURN(std::string dtype, CheckHolds(checkpoint, sizes));
  const std::string partial = absl::StrCat(out, kPartialSuffix);
  RETURN_IF_ERROR(file_system.MakeFolder(partial));
  absl::Cleanup remove_partial = [&] { file_system.RemoveAll(partial).IgnoreError(); };
  RETURN_IF_ERROR(WriteWeights(checkpoint, sizes, dtype, JoinPath(partial, kWeightsName), file_system));
  auto write = [&](const char* name, const OrderedJson& json) {
    return WriteText(JoinPath(partial, name), json.dump(2) + "\n", file_system);
  };
  RETURN_IF_ERROR(write(kConfigName, ConfigOf(sizes, dtype)));
  RETURN_IF_ERROR(write("generation_config.json", GenerationOf()));
  if (sizes.vocabulary == kBytes) {
    RETURN_IF_ERROR(write("tokenizer.json", TokenizerOf()));
    RETURN_IF_ERROR(write("tokenizer_config.json", {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                                    {"model_max_length", sizes.context},
                                                    {"clean_up_tokenization_spaces", false}}));
    RETURN_IF_ERROR(WriteText(JoinPath(partial, "README.md"), kReadme, file_system));
  }
  RETURN_IF_ERROR(file_system.SyncFolder(partial));
  RETURN_IF_ERROR(file_system.RenameOrExchange(partial, out));
  return file_system.SyncFolder(std::filesystem::path(out).parent_path().string());
}

absl::StatusOr<Gpt2Sizes> ReadGpt2Config(const std::string& folder) {
  const std::string path = JoinPath(folder, kConfigName);
  ASSIGN_OR_RETURN(std::string text, ReadFile(path, kConfigBytesMax));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, " is not a JSON object"));
  ConfigReader reader(json);
  reader.Expect("model_type", "gpt2");
  reader.Expect("activation_function", "gelu_new");
  reader.Expect("layer_norm_epsilon", kEpsilon);
  reader.Expect("scale_attn_weights", true);
  reader.Expect("scale_attn_by_inverse_layer_idx", false);
  reader.Expect("tie_word_embeddings", true);
  reader.Expect("add_cross_attention", false);
  Gpt2Sizes sizes{.layers = reader.Size("n_layer"),
                  .heads = reader.Size("n_head"),
                  .width = reader.Size("n_embd"),
                  .context = reader.Size("n_positions"),
                  .vocabulary = reader.Size("vocab_size"),
                  .dropout = reader.Share("resid_pdrop")};
  reader.Expect("n_inner", 4 * sizes.width);
  std::vector<std::string> problems = reader.problems();
  if (sizes.width % sizes.heads != 0) {
    problems.push_back(absl::StrCat("n_head ", sizes.heads, " does not divide n_embd ", sizes.width));
  }
  if (problems.empty()) return sizes;
  return absl::InvalidArgumentError(
      absl::StrCat(path, " tells of no GPT-2 that can be trained here: ", absl::StrJoin(problems, "; ")));
}

absl::StatusOr<SavedCheckpoint> ImportGpt2(const std::string& folder, const Gpt2Sizes& sizes,
                                           const std::string& run_folder, Manifest manifest, FileSystem& file_system) {
  ASSIGN_OR_RETURN(std::vector<StepFolder> there, ListCheckpoints(run_folder));
  if (!there.empty())
    return absl::AlreadyExistsError(absl::StrCat(there[0].path, " is there already; name a new folder"));
  ASSIGN_OR_RETURN(std::unique_ptr<ForeignWeights> weights,
                   ForeignWeights::Open(JoinPath(folder, kWeightsName), sizes));
  RETURN_IF_ERROR(MakeFolders(run_folder));
  std::vector<TensorHeader> headers;
  for (const char* role : {"parameter", "exp_avg", "exp_avg_sq"}) {
    for (auto& [name, shape] : Gpt2Parameters(sizes)) {
      headers.push_back({.name = name, .role = role, .dtype = weights->dtype(), .shape = shape});
    }
  }
  auto stream = [&](TensorSink sink) -> absl::Status {
    for (const TensorHeader& header : headers) {
      std::string bytes = header.role == "parameter" ? weights->Read(header.name) : weights->Zeros(header.name);
      RETURN_IF_ERROR(sink(bytes));
    }
    return absl::OkStatus();
  };
  manifest.step = 0;
  return WriteCheckpoint(run_folder, std::move(manifest), headers, stream, file_system);
}

}  // namespace trainyard
