"""How ms-swift reaches the reward: the plugin (thin), the rollout environment, encoders and stores.

Importing this package has no side effects: no client, model or file is opened before it is needed.
"""
