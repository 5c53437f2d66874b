"""Generate tokens with vLLM and a tiny model with random weights, so nothing is downloaded."""

import json
import os
import tempfile

# The engine in this process: its libcuda is then the one that is looked at.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["HF_HUB_OFFLINE"] = "1"

from driver import answer, mapped, memory

CONFIG = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "hidden_size": 256,
    "ffn_dim": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "word_embed_proj_dim": 256,
    "vocab_size": 1024,
    "max_position_embeddings": 256,
    "do_layer_norm_before": True,
    "activation_function": "relu",
    "torch_dtype": "float16",
    "bos_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 1,
}


def main():
    import vllm

    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(CONFIG, file)
        engine = vllm.LLM(
            model=folder, load_format="dummy", skip_tokenizer_init=True, max_model_len=128,
            gpu_memory_utilization=0.5, dtype="float16",
        )  # fmt: skip
        wanted = vllm.SamplingParams(max_tokens=8, ignore_eos=True, detokenize=False)
        prompts = [{"prompt_token_ids": [5, 6, 7, number]} for number in range(4)]
        tokens = [len(each.outputs[0].token_ids) for each in engine.generate(prompts, wanted)]
    answer(version=vllm.__version__, tokens=tokens, expected=[8] * 4, total=memory()[1], mapped=mapped())


if __name__ == "__main__":
    main()
