"""One job as an object, and tables of jobs, as text and as HTML for notebooks. Names and reasons are escaped: they may
come from other users."""

import collections
import html
import unicodedata
import warnings

from trainyard import errors, schema

Step = collections.namedtuple("Step", ("step", "loss", "tokens", "step_s", "lr", "grad_norm"))
_PAUSE_S = 15.0  # past events arrive without a pause, so after one no past event is left
_HEADINGS = ("id", "name", "state", "step", "loss", "ranks", "reason")


def _ranks(job):
    ranks, command = job.spec.resources.ranks, job.spec.command
    if not command.HasField("min_ranks") or command.min_ranks == ranks:
        return str(ranks)
    return f"{job.current_ranks} of {ranks}" if job.current_ranks else f"{command.min_ranks} to {ranks}"


def _row(job):
    loss = f"{job.last_loss:.4f}" if job.HasField("last_loss") else ""
    return (job.job_id, job.spec.name, schema.state_name(job.state), str(job.last_step or ""), loss,
            _ranks(job), job.reason)


def _columns(text):
    """How many columns of a terminal a text takes; trainctl (client/column_width.h) counts rare characters better."""
    return sum(0 if unicodedata.category(c) in ("Mn", "Me", "Cf") else
               2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _html_table(headings, rows):
    def cells(tag, values):
        return "<tr>" + "".join(f"<{tag}>{html.escape(errors.plain_line(value))}</{tag}>" for value in values) + "</tr>"

    return f"<table>{cells('th', headings)}{''.join(cells('td', row) for row in rows)}</table>"


class JobTable(list):
    """Job messages, shown as a table."""

    def __repr__(self):
        rows = [_HEADINGS[:-1]] + [tuple(errors.plain_line(value) for value in _row(job)[:-1]) for job in self]
        widths = [max(_columns(row[i]) for row in rows) for i in range(len(rows[0]))]
        padded = [[value + " " * (width - _columns(value)) for value, width in zip(row, widths)] for row in rows]
        return "\n".join("  ".join(row).rstrip() for row in padded)

    def _repr_html_(self):
        return _html_table(_HEADINGS, [_row(job) for job in self])


class Job:
    """A job of a client: `client.job("small").plot()`."""

    def __init__(self, client, job_id):
        self._client = client
        self.id = job_id

    def refresh(self):
        """The newest Job message."""
        return self._client.get(self.id)

    @property
    def state(self):
        return schema.state_name(self.refresh().state)

    def watch(self):
        return self._client.watch(self.id)

    def wait(self):
        """Waits for the end of the job and returns its last Job message."""
        for _ in self.watch():
            pass
        return self.refresh()

    def logs(self, **options):
        return self._client.logs(self.id, **options)

    def cancel(self, **options):
        return self._client.cancel(self.id, **options)

    def pause(self, **options):
        return self._client.pause(self.id, **options)

    def resume(self, **options):
        return self._client.resume(self.id, **options)

    def set_priority(self, priority, **options):
        return self._client.set_priority(self.id, priority, **options)

    def restart(self, **options):
        return self._client.restart(self.id, **options)

    def save(self, **options):
        return self._client.save(self.id, **options)

    def steps(self):
        """The steps that were made so far, as a list of Step. The loss is None if a script reported none. Warns if the
        coordinator no longer has the newest ones, for example because it was restarted while the job was paused."""
        job = self.refresh()
        rows = []
        if not job.last_step:
            return rows
        stream = self._client.watch(self.id, pause_s=_PAUSE_S)
        for event in stream:
            if event.WhichOneof("kind") != "step":
                continue
            row = Step(*(getattr(event.step, name) for name in Step._fields))
            rows.append(row if event.step.HasField("loss") else row._replace(loss=None))
            if event.step.step >= job.last_step:
                break
        stream.close()
        newest = rows[-1].step if rows else 0
        if newest < job.last_step:
            warnings.warn(f"the coordinator has no report of the steps {newest + 1} to {job.last_step}", stacklevel=2)
        return rows

    def plot(self, axes=None):
        """Draws the loss over the steps with matplotlib, and returns the axes."""
        try:
            from matplotlib import pyplot
        except ImportError:
            raise ImportError("plot() needs matplotlib: pip install matplotlib") from None
        steps = [row for row in self.steps() if row.loss is not None]
        axes = axes or pyplot.subplots()[1]
        axes.plot([row.step for row in steps], [row.loss for row in steps])
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        # matplotlib would read a name with two dollar signs as a formula.
        axes.set_title(errors.plain_line(self.refresh().spec.name).replace("$", r"\$"))
        return axes

    def __repr__(self):
        return f"Job({self.id!r})"

    def _repr_html_(self):
        return _html_table(_HEADINGS, [_row(self.refresh())])
