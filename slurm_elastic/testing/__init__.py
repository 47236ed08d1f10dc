"""Test suites for clouds, policies, checkpoint methods and ranking keys, both ours and those of
plug-ins. They need pytest, which the product itself does not install.

``contract``: the duties of a provider; ``stop_contract``: of a provider that can stop machines;
``matrix``: how a daemon copes with each fault of a provider; ``growth``: the duties of a growth
policy; ``release``: of a release policy; ``save_policy``: of a checkpoint policy; ``saving``: of a
checkpoint method; ``ranking``: of a ranking key. ``pytest_plugins = ["slurm_elastic.testing"]`` makes
pytest show the values in their assertions.
"""
