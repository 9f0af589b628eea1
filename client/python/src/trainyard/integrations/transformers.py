"""For the Trainer of transformers: reports its steps, and saves and ends training when the job is being ended.

    trainer = Trainer(..., callbacks=[StopOnRequest(), SaveOnRequest(), ReportProgress()])
    trainer.train(resume_from_checkpoint=get_last_checkpoint(output_dir))

The Trainer then returns from train() as after its last step, so scripts must exit without work that assumes the end of
training; `stopped` says whether training was ended early.
"""

import pathlib

from transformers import TrainerCallback

from trainyard import phase, report, report_eval, saving, script


class StopOnRequest(TrainerCallback):
    """`every_steps`: the number of steps after which the ranks agree again whether to stop, by a collective
    (trainyard.should_stop). An evaluation that is due after that step is left out."""

    def __init__(self, every_steps=1):
        if every_steps < 1:
            raise ValueError(f"every_steps must be at least 1, found {every_steps}")
        self._every_steps = every_steps
        self.stopped = False

    def on_train_begin(self, args, state, control, **kwargs):
        script.stop_requested()  # from here on, SIGTERM does not end the process
        self.stopped = False

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % self._every_steps == 0 and script.should_stop():
            self.stopped = True
            # The Trainer evaluates before it saves, which may take longer than the grace period, and with
            # save_strategy="best" the result decides whether it saves.
            control.should_evaluate = False
            control.should_save = True
            control.should_training_stop = True

    def on_epoch_end(self, args, state, control, **kwargs):
        # Also called when training ends within an epoch. Another save would overwrite the complete checkpoint.
        if self.stopped:
            control.should_evaluate = control.should_save = False


class SaveOnRequest(TrainerCallback):
    """Saves when `trainctl checkpoint now` requests it, and reports all checkpoints of the Trainer. `every_steps`: the
    number of steps after which the ranks agree again whether to save, by a collective (trainyard.should_save)."""

    def __init__(self, every_steps=1):
        if every_steps < 1:
            raise ValueError(f"every_steps must be at least 1, found {every_steps}")
        self._every_steps = every_steps
        self._is_requested = False

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % self._every_steps == 0 and saving.should_save():
            self._is_requested = True
        # Set again after the next step if the Trainer has cleared it, after an evaluation with save_strategy="best".
        if self._is_requested:
            control.should_save = True

    def on_save(self, args, state, control, **kwargs):
        self._is_requested = False
        script.largest_of_ranks(0)  # a barrier: after it, all ranks have written their parts
        if state.is_world_process_zero:
            saving.saved(state.global_step, pathlib.Path(args.output_dir) / f"checkpoint-{state.global_step}")


class ReportProgress(TrainerCallback):
    """Reports what the Trainer logs (`logging_steps`) and its evaluations, which are phases of their own."""

    def __init__(self):
        self._evaluation = None  # the phase, while the Trainer evaluates

    def on_log(self, args, state, control, logs=None, **kwargs):
        logs = logs or {}
        if "loss" in logs:
            report(state.global_step, loss=logs["loss"], lr=logs.get("learning_rate"), grad_norm=logs.get("grad_norm"))
        if "eval_loss" in logs and state.global_step > 0:  # eval_on_start evaluates before the first step
            report_eval(state.global_step, logs["eval_loss"], seconds=logs.get("eval_runtime", 0.0))

    def on_prediction_step(self, args, state, control, **kwargs):
        # The Trainer has no callback for the beginning of an evaluation.
        if self._evaluation is None:
            self._evaluation = phase("evaluate")
            self._evaluation.__enter__()

    def on_evaluate(self, args, state, control, **kwargs):
        if self._evaluation is not None:
            self._evaluation.__exit__(None, None, None)
            self._evaluation = None

    def on_predict(self, args, state, control, **kwargs):
        self.on_evaluate(args, state, control)
