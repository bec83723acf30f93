"""Keys of other toolkits and those of nmtkit in their place, for messages about unknown keys."""

FOREIGN_KEYS = {
    key: ours
    for ours, keys in {
        "data.tokenizer (of an nmtkit model), data.vocab_size": "src_vocab tgt_vocab vocabs bpe_codes bpe srcdict",
        "data.share_vocab": "joined_dictionary",
        'data.normalize = ["lowercase"]': "lowercase",
        "model.d_model": "encoder_embed_dim decoder_embed_dim dim_emb hidden_size word_vec_size rnn_size embedding_dim",
        "model.d_ff": "encoder_ffn_embed_dim decoder_ffn_embed_dim transformer_dim_ffn transformer_ff ff_size",
        "model.num_heads": "attention_heads encoder_attention_heads decoder_attention_heads heads transformer_heads",
        "model.encoder_layers, decoder_layers": "enc_layers dec_layers layers enc_depth dec_depth num_layers",
        'model.norm = "pre"': "encoder_normalize_before decoder_normalize_before layer_norm",
        "model.share_embeddings": "share_all_embeddings tied_embeddings_all tied_embeddings tied_softmax",
        "training.tokens_per_update, and the memory limit training.tokens_per_pass":
            "max_tokens batch_size batch_type update_freq accum_count gradient_accumulation_steps optimizer_delay",
        "training.peak_learning_rate": "lr learning_rate learn_rate",
        "training.schedule": "lr_scheduler decay_method lr_decay_inv_sqrt scheduling",
        "training.warmup_steps": "warmup_updates lr_warmup learning_rate_warmup",
        "training.max_steps": "max_update train_steps after_batches total_num_update",
        "training.max_epochs": "epochs after_epochs",
        "training.checkpoint_every_steps": "save_interval_updates save_checkpoint_steps save_freq save_interval",
        "training.validate_every_steps": "valid_freq valid_steps validate_interval_updates",
        "training.patience_validations": "patience early_stopping",
        "training.ema_decay": "exponential_smoothing average_decay",
        "training.label_smoothing": "criterion",
        'training.precision = "auto"': "fp16 bf16 amp model_dtype",
        "decoding.alpha": "lenpen beam_alpha",
        "decoding.beam": "beam_size",
        "done by `translate`, without a key": "remove_bpe nbest n_best",
    }.items()
    for key in keys.split()
}  # fmt: skip
"""Keys of nmtkit by the names that fairseq, OpenNMT-py, Marian, JoeyNMT and Hugging Face have for them."""
