"""One module per published figure: ``python -m benchmarks.NAME [--quick]`` prints a table, then one line of JSON.

A benchmark of several parts has these in a folder:

- ``coverage`` → ``covering``: which models the estimator takes, how exact it is for them, and what its refusals say.
- ``estimators`` → ``estimating``: predicted against measured memory and seconds; ``gpu_estimators`` also uses it.
- ``live_study`` → ``living``: whole studies on virtual devices, in a served ScaMP and with Ray Tune.
- ``placement`` → ``packing``: how well and how fast gangs are packed, in virtual time.
- ``planner`` → ``planning``: how good the chosen plans are.
- ``published`` → ``publishing``: predictions for GPUs against measurements that others have published.
- ``runtime`` → ``features``, ``porting`` and ``throughput``: the same curve under every plan, trainings of
  papers, what ports cost, and speed against loops written by hand.
- ``same_curve`` → ``curves``: model idioms under every kind of plan.
- ``search`` → ``searching``: samplers, stopping rules, and the database as Optuna's storage.
- ``trust`` → ``trusting``: simulated faults, mutants of our own code, and the API under load.

``first_minutes`` is one file, and so is ``papers``: entries that reuse the others, beside what papers report.
``running`` runs the parts of all of them.
"""
