"""For the Trainer of Lightning: reports its steps, and saves and ends training when the job is being ended.

    path = "last.ckpt"
    trainer = Trainer(..., callbacks=[StopOnRequest(path), ReportProgress()])
    trainer.fit(model, data, ckpt_path=path if os.path.exists(path) else None)

The Trainer then returns from fit() as it does after its last step. The attribute `stopped` of StopOnRequest says
whether training was ended early: the script must then exit and skip work that needs the final model. Works with the
packages lightning and pytorch_lightning.
"""

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    try:
        from pytorch_lightning.callbacks import Callback
    except ImportError as error:
        raise ImportError("trainyard.integrations.lightning needs Lightning: pip install lightning") from error

from trainyard import phase, report, report_eval, script


class StopOnRequest(Callback):
    """`save_to`: the checkpoint to write before training ends; None: none. `every_steps`: the number of steps after
    which the ranks agree again whether to stop, by a collective (trainyard.should_stop)."""

    def __init__(self, save_to=None, every_steps=1):
        if every_steps < 1:
            raise ValueError(f"every_steps must be at least 1, found {every_steps}")
        self._save_to = save_to
        self._every_steps = every_steps
        self._checked = 0
        self.stopped = False

    def setup(self, trainer, pl_module, stage):
        script.stop_requested()  # from here on, SIGTERM does not end the process

    def on_train_start(self, trainer, pl_module):
        # Replaces the handler that Lightning has installed, which broadcasts while other ranks may be in another
        # collective, and then leaves fit() by an exception. Lightning restores our handler when fit() ends.
        script.install_again()
        self._checked = trainer.global_step
        self.stopped = False

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step - self._checked < self._every_steps:
            # Returns between the batches of one step, too, because checkpoints do not contain accumulated gradients.
            return
        self._checked = trainer.global_step
        if not self.stopped and script.should_stop():
            self.stopped = True
            if self._save_to is not None:
                trainer.save_checkpoint(self._save_to)
            trainer.should_stop = True


class ReportProgress(Callback):
    """Reports the loss of every optimizer step, which is the mean over its accumulated batches, and the evaluations,
    which are phases of their own.

    `every_steps`: how often a step is reported; a loss on a GPU makes the call wait for the GPU. `eval_loss`: the name
    under which the module logs the loss of its validation."""

    def __init__(self, every_steps=1, eval_loss="val_loss"):
        if every_steps < 1:
            raise ValueError(f"every_steps must be at least 1, found {every_steps}")
        self._every_steps = every_steps
        self._eval_loss = eval_loss
        self._step = 0
        self._loss = None
        self._lr = None
        self._evaluation = None  # the phase, while the Trainer evaluates

    def on_train_start(self, trainer, pl_module):
        self._step = trainer.global_step
        self._loss = None

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self._lr = optimizer.param_groups[0]["lr"]

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None:
            # Lightning has divided the loss by the number of accumulated batches.
            self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()
        step = trainer.global_step
        if step == self._step:
            return
        if step // self._every_steps != self._step // self._every_steps:
            report(step, loss=self._loss, lr=self._lr)
        self._step, self._loss = step, None

    def on_validation_start(self, trainer, pl_module):
        if self._evaluation is None:
            self._evaluation = phase("evaluate")
            self._evaluation.__enter__()

    def on_validation_end(self, trainer, pl_module):
        if self._evaluation is not None:
            self._evaluation.__exit__(None, None, None)
            self._evaluation = None
        loss = trainer.callback_metrics.get(self._eval_loss)
        if loss is not None and trainer.global_step > 0 and not trainer.sanity_checking:
            report_eval(trainer.global_step, loss)
