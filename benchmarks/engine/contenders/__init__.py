"""The engines that ours is compared with: their models, how texts are arranged for them, and their processes."""
