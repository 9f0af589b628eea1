"""For scripts of Accelerate: reports what they log.

    accelerator = Accelerator(log_with=[TrainyardTracker()])
    accelerator.init_trackers("my_project")
    trainyard.stop_requested()  # before the workers of the loader are started
    for step, batch in enumerate(loader, start=1):
        ...
        accelerator.log({"loss": loss.item(), "lr": scheduler.get_last_lr()[0]}, step=step)
        if trainyard.should_stop():  # on every rank
            accelerator.save_state("state")
            break
    accelerator.end_training()
"""

import warnings

try:
    from accelerate.tracking import GeneralTracker
except ImportError as error:
    raise ImportError("trainyard.integrations.accelerate needs Accelerate: pip install accelerate") from error

from trainyard import report, report_eval

_SHOWN = {"lr": ("lr", "learning_rate"), "grad_norm": ("grad_norm",), "tokens": ("tokens",)}


class TrainyardTracker(GeneralTracker):
    """Reports values that are logged with a step. `loss` and `eval_loss` are the names under which the script logs
    its losses; `first_step` is the number that the script gives its first step. lr (or learning_rate), grad_norm and
    tokens are reported with a loss; other values are ignored."""

    name = "trainyard"
    requires_logging_directory = False
    main_process_only = False  # log() runs on every rank, because each rank reports its own last step

    def __init__(self, loss="loss", eval_loss="eval_loss", first_step=1):
        if isinstance(first_step, bool) or first_step not in (0, 1):
            raise ValueError(f"first_step must be 0 or 1, found {first_step!r}")
        super().__init__()
        self._loss = loss
        self._eval_loss = eval_loss
        self._offset = 1 - first_step

    @property
    def tracker(self):
        return self

    def log(self, values, step=None, **kwargs):
        if self._loss not in values and self._eval_loss not in values:
            return
        if step is None:
            warnings.warn("values that are logged without a step are not reported to Trainyard: call "
                          "accelerator.log(values, step=step)", RuntimeWarning, stacklevel=3)
            return
        step += self._offset
        if self._loss in values:
            shown = {key: values[name] for key, names in _SHOWN.items() for name in names if name in values}
            report(step, loss=values[self._loss], **shown)
        if self._eval_loss in values:
            report_eval(step, values[self._eval_loss])
