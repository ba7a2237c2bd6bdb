"""Options of the commands that make and check bundles: capture to train-vae, doctor, demo."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro
from annotated_types import Ge, Gt, Le, Lt

from vinoreward.images import MAX_VIEWS
from vinoreward_training.configs.task import RUNS_CODE, Count, Seed, Task

Side = Annotated[int, Ge(16), Le(10_000)]
"""Height or width of an image."""

Int8 = Literal["auto", "on", "off"]
Calls = Annotated[int, Ge(0), Le(10**12)]
"""Images that a judge may score."""


@dataclass(frozen=True, kw_only=True)
class CaptureConfig(Task):
    """Write labelled images of successes, near misses and traps.

    The result is an image folder (``success/``, ``failure/``) with a table, ``metadata.csv``.

    Examples:
        vinoreward capture --out data/hover --frames 6000
        vinoreward capture --resume --out data/hover --frames 20000
        vinoreward capture --out data/mine --env my_package:MyEnv-v0 --truth at_goal
        vinoreward capture --out data/mine --env my_package:MyEnv-v0 --image-source obs:front \\
            --image-size 96 128 --env-kwargs max_episode_steps 100
        vinoreward capture --out data/mine --env my_package:MyEnv-v0 --image-source obs:front \\
            obs:wrist
        vinoreward capture --out data/mine --env my_package:MyEnv-v0 --labels-from mine.py:success
        vinoreward capture --recordings videos --video-fps 5 --out data/mine
        vinoreward capture --recordings pick --camera observation.images.front --out data/pick
    """

    FIRST: ClassVar[tuple[str, ...]] = (
        "out", "env", "truth", "labels_from", "frames", "image_source", "image_size", "policy",
        "env_kwargs", "recordings", "seed", "resume",
    )  # fmt: skip

    out: Path = Path("data/hover")
    """Folder to write; default: data/NAME, of the environment or the recordings."""
    env: Annotated[str, RUNS_CODE] = "PandaHoverRandom-v0"
    """Gymnasium id. In PandaHover and environments derived from its class, the capture places arm
    and object directly; in others it acts at random."""
    frames: Annotated[int, Ge(2)] = 6000
    """Number of images."""
    seed: Annotated[int, Ge(0)] = 0
    """Frame i depends only on the seed and i; in other environments, episode i does."""
    resume: bool = False
    """Continue the capture in --out with its recorded configuration, or add --frames to it."""
    trust_run: bool = False
    """Import the package of an environment that only the run names, as in package:Id-v0. This runs
    its code. Without this option, you are asked."""
    stack: Annotated[int, Ge(1), Le(MAX_VIEWS)] = 1
    """Images of each camera in an image: of its last steps, for a task that a single image does
    not show."""
    image_size: tuple[Side, Side] | None = None
    """HEIGHT WIDTH of an image. PandaHover draws it so (default: 96 128). Others are resized by
    PIL, as the bundle does too (default: longer side at most 160)."""
    policy: Annotated[str | None, RUNS_CODE] = None
    """Who plays: a function of the observation that gives the action, FILE.py:FUNCTION or
    PACKAGE.MODULE:FUNCTION, whose code is run, or a folder of vinoreward train or actors. Default:
    at random."""
    mix: dict[str, float] = field(default_factory=dict)
    """With --policy, shares of the episodes, which are played at random, by the policy, or by the
    policy with random steps; default: random 1 policy 1 noisy 2."""
    labels_from: Annotated[str | None, RUNS_CODE] = None
    """Instead of --truth: judge FILE.py:FUNCTION that says which images of an episode are
    successes, as in calibrate. Its code is run. Images that it abstains from are not taken."""
    max_calls: Calls | None = None
    """With --labels-from: most images that the judge may score now; --resume goes on."""
    per_episode: Count = 4
    """Maximum images of each label per played episode. Fewer means more episodes, which support a
    lower error rate."""
    progress: bool = False
    """For finetune --progress: take half of the failures from an episode's whole way to success,
    where otherwise those of few are from its last steps."""
    recordings: Path | None = None
    """Instead of acting: take images, --frames at most, from a LeRobotDataset v3.0 folder, or from
    a video or a folder of videos, each an episode. Labels of videos are in a table of times beside
    them, labels.csv (video,start,end,label, with seconds and success or failure), or are the
    folders success/ and failure/ that they are in."""
    video_fps: Annotated[float, Gt(0), Le(1000)] = 5.0
    """Images per second of a video."""
    camera: str | None = None
    """Of a LeRobot dataset: key of its images, such as observation.images.front; not needed if
    there is one only."""
    label_column: str | None = None
    """Of a LeRobot dataset: column that says what is a success; by default next.success, else
    next.reward. none: take images without labels, for train-vae."""


@dataclass(frozen=True)
class FinetuneConfig:
    """Train a success classifier and save it as a bundle.

    Ends with threshold, error rates, OOD detector, INT8 network and a verdict. Exits with 3 if the
    classifier is useless. With --labels-from a slow judge labels the images; the report says where
    the classifier and the judge differ.

    Examples:
        vinoreward finetune --data data/hover --out runs/hover-classifier
        vinoreward finetune --resume --out runs/hover-classifier
        vinoreward finetune --data data/mine --success-label good --out runs/mine-classifier
        vinoreward finetune --data data/more --out runs/better \\
            --weights runs/hover-classifier/bundle/model.safetensors
        vinoreward finetune --data data/mine --network resnet18 --pretrained --out runs/resnet
        vinoreward finetune --data photos --labels-from mine.py:success --out runs/student
        vinoreward finetune --data data/demonstrations --progress --out runs/progress
    """

    FIRST: ClassVar[tuple[str, ...]] = (
        "data", "labels_from", "out", "network", "weights", "pretrained", "freeze", "progress",
        "epochs", "target_fpr", "image_crop", "image_size", "success_label", "int8", "resume",
    )  # fmt: skip

    data: Path = Path("data/hover")
    """A capture, or any folder with one sub-folder of images per class."""
    labels_from: Annotated[str | None, RUNS_CODE] = None
    """Judge FILE.py:FUNCTION that labels the images of --data, a capture or any folder of images,
    as in calibrate. Its code is run. Images that it abstains from are left out."""
    max_calls: Calls | None = None
    """With --labels-from: most images that the judge may score now."""
    out: Path = Path("runs/hover-classifier")
    """Run folder; the bundle is written to OUT/bundle. Default: runs/NAME, of the data."""
    name: tyro.conf.Suppress[str] = ""
    """Name of the bundle; default: from the data's folder, as hover-classifier from data/hover."""
    network: str = "squeezenet1_1"
    """squeezenet1_1, which gives way to fine_resnet where that learns more in the first epochs;
    fine_resnet, for small targets; any other classifier of torchvision (resnet18,
    mobilenet_v3_small, efficientnet_b0 ...), or timm:NAME with the extra timm (timm:resnet10t)."""
    weights: Path | None = None
    """Initial weights (.safetensors, or .pt loaded as data only) of the same network; the last
    layer may be another. Default: from scratch."""
    pretrained: bool = False
    """Initial weights that torchvision or timm publish for the network, downloaded or cached."""
    freeze: bool = False
    """Fit the last layer only, of --weights or --pretrained, in seconds: for forty to a few hundred
    images."""
    epochs: Annotated[int, Ge(1)] = 12
    """Passes over the training frames."""
    learning_rate: Annotated[float, Gt(0), Lt(1)] = 1e-3
    """Highest learning rate, after warm-up; decays to 0 along a cosine."""
    progress: bool = False
    """Learn progress too, from the steps to success that a capture records, for train --reward-mode
    progress: 0 as far from success as the slowest tenth of the episodes begins, 1 at success."""
    target_fpr: Annotated[float, Gt(0), Lt(1)] | None = None
    """False-positive rate of the threshold, with 95 % confidence. Default: 0.01, or less where
    episodes are long, or the next higher that the data support."""
    image_crop: tuple[int, int, int, int] | None = None
    """TOP LEFT HEIGHT WIDTH: cut this out of each image first, as the bundle does later."""
    image_size: tuple[int, int] | None = None
    """Resize images to HEIGHT WIDTH; default: the size of a capture's images, of others the most
    common one, made smaller until the longer side has 160 pixels."""
    success_label: str = "success"
    """Sub-folder with the successes."""
    int8: Int8 = "auto"
    """Add an INT8 network. auto: if its decisions agree with FP32's and it is faster on this
    processor, and there is no progress, which is FP32's; on: if they agree, else the command
    fails; off: no."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of initial weights and order; not of the split."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, with its recorded configuration."""


@dataclass(frozen=True)
class ImportConfig:
    """Make a bundle from a classifier or an encoder that was trained elsewhere.

    Accepts an ONNX file, a state dict with its network, or the folder of a LeRobot reward
    classifier; with --data and --golden it is an encoder. What the file defines (size, layout,
    softmax or sigmoid at the end, Intel model_api's model_info) need not be given. A classifier's
    threshold is the file's, or 0.5, until vinoreward calibrate chooses it.

    Examples:
        vinoreward import --model resnet18.onnx --labels failure success \\
            --mean 0.485 0.456 0.406 --std 0.229 0.224 0.225 --out bundles/mine
        vinoreward import --model weights.pt --network resnet18 --height 224 --width 224 \\
            --labels failure success --mean 0.485 0.456 0.406 --std 0.229 0.224 0.225 \\
            --out bundles/mine
        vinoreward import --model lerobot/reward_classifier --out bundles/mine
        vinoreward import --model encoder.onnx --data frames --out bundles/mine \\
            --golden frame.png latent.npy
    """

    FIRST: ClassVar[tuple[str, ...]] = (
        "model", "out", "network", "height", "width", "color_order", "mean", "std", "labels",
        "success_label", "data", "golden",
    )  # fmt: skip

    model: Path
    """An .onnx, a state dict (.pt or .safetensors, read as data), or a LeRobot reward
    classifier's folder."""
    out: Path
    """The new bundle's folder."""
    name: str | None = None
    """Name of the bundle; default: the model file's name."""
    network: str | None = None
    """Of a state dict: torchvision's name of a classifier, such as resnet18, or
    PACKAGE.MODULE:FUNCTION or FILE.py:FUNCTION, which builds the module."""
    height: Annotated[int, Ge(1)] | None = None
    """Of the network's input, if the file does not define it."""
    width: Annotated[int, Ge(1)] | None = None
    """Of the network's input, if the file does not define it."""
    layout: Literal["NCHW", "NHWC"] | None = None
    """Of the network's input, if the file does not define it."""
    color_order: Literal["RGB", "BGR"] | None = None
    """Colour order in the network's training; default: the file's, or RGB."""
    mean: tuple[float, float, float] | None = None
    """Per channel, in units of pixel / scale. Default: the file's, or of an encoder 0 0 0."""
    std: tuple[float, float, float] | None = None
    """Per channel, in units of pixel / scale. Default: the file's, or of an encoder 1 1 1."""
    scale: float | None = None
    """Divisor of pixels: 255 (the default) for a network trained on 0 to 1, 1 for 0 to 255."""
    crop: tuple[int, int, int, int] | None = None
    """TOP LEFT HEIGHT WIDTH: crop each image first, as in training."""
    outputs: tuple[str, ...] = ()
    """Names or numbers of the graph's outputs. Of a classifier one number; of an encoder the
    vector, or means then log variances. Default: the file's."""
    labels: tuple[str, ...] = ()
    """Of a classifier: one per output, in order; for a network with one output two, that of a low
    output first. Default: the file's."""
    success_label: str = "success"
    """Which label means success."""
    output: Literal["logits", "probabilities", "logit", "probability"] | None = None
    """What a classifier returns: one column per label, or a single one for the second label;
    before or after the softmax or sigmoid. Default: from the file."""
    data: Path | None = None
    """Of an encoder: a folder of typical images, for the bounds of the latent and golden images."""
    golden: tuple[Path, Path] | None = None
    """IMAGE LATENT: of an encoder, an image and a .npy file of the means that the original makes of
    it. This checks colour order, value range and size."""
    overwrite: bool = False
    """Replace an existing bundle."""


@dataclass(frozen=True)
class CalibrateConfig:
    """Choose the threshold of a bundle, a judge or any scores on labelled images.

    For classifiers from elsewhere, and for any other camera or place: the bundle gets what finetune
    gives its own (threshold with its bound, metrics, verdict, OOD detector, golden frames, model
    card). An encoder's bundle gets an INT8 network only.

    A judge is any function that takes images (N, H, W, 3) uint8 and returns (N,) scores from 0 to
    1, NaN to abstain. Its threshold, OOD detector, report and all scores so far are kept beside its
    file, in FILE.FUNCTION. Of --scores the report is written beside the table.

    Exits with 3 if the classifier is useless on these images.

    Examples:
        vinoreward calibrate --bundle bundles/mine --data data/mine
        vinoreward calibrate --bundle bundles/mine --data data/mine --target-fpr 0.05
        vinoreward calibrate --judge mine.py:success --data data/mine --max-calls 2000
        vinoreward calibrate --scores scores.csv
    """

    bundle: Path | None = None
    """The bundle's folder. An installed bundle is read-only: copy it first."""
    judge: Annotated[str | None, RUNS_CODE] = None
    """Instead of a bundle: a judge, FILE.py:FUNCTION, whose code is run."""
    scores: Path | None = None
    """Instead of both: a table of scores with the columns score (from 0 to 1, empty to abstain),
    label (1 or the success label, else a failure) and episode."""
    data: Path | None = None
    """A capture, or any folder with one sub-folder of images per class. Of what the classifier was
    trained on, only the held-out images choose the threshold."""
    target_fpr: Annotated[float, Gt(0), Lt(1)] | None = None
    """False-positive rate of the threshold, with 95 % confidence. Default: 0.01, or less where
    episodes are long, or the next higher that the data support."""
    success_label: str = "success"
    """Sub-folder of the data with the successes."""
    max_calls: Calls | None = None
    """With --judge: most images that the judge may score now; the same command goes on later."""
    int8: Int8 = "auto"
    """Add an INT8 network, as in finetune."""


@dataclass(frozen=True)
class LabelConfig:
    """Label images in the browser, the most useful first: success, failure, skip, undo.

    Opens a page of this machine's own; no other machine can reach it. Each label is on the disk
    before the next image appears. Stop with Ctrl-C; the same command goes on where you were. One
    image of twenty comes twice, unmarked, to measure how often you agree with yourself.

    Examples:
        vinoreward label --run runs/mine-policy --bundle runs/mine-classifier/bundle
        vinoreward label --data data/mine --limit 200
    """

    run: Path | None = None
    """A run of vinoreward train: images of claimed successes."""
    data: Path | None = None
    """Instead: a capture, or any folder of images."""
    bundle: str | None = None
    """Classifier that chooses which images come first, never shown: those it is unsure of, and
    claims that its guard finds out of distribution. A folder, the name of an installed one, or
    hf:OWNER/NAME. None: random order; of a run that of its draw, so that few labels bound the
    precision of all its claims."""
    labeller: str | None = None
    """Your name, as written with each label; default: your login name."""
    limit: Annotated[int, Ge(1)] | None = None
    """Maximum number of new images in this sitting; default: all."""
    out: Path | None = None
    """File of labels, appended to; default: labels.jsonl in the run or data folder."""
    open: bool = True
    """Open the browser. The address is printed in any case."""


@dataclass(frozen=True)
class ScoreConfig:
    """Score each image of a dataset with a classifier: a probability, and whether it is a success.

    Writes DATA/scores/NAME/scores.csv, of the bundle's NAME. Where the data have labels, the report
    beside it has rates with intervals by episode and by frame, ROC and calibration.

    Examples:
        vinoreward score --data data/mine --bundle runs/mine-classifier/bundle
        vinoreward score --data recordings/pick --camera observation.images.front \\
            --bundle runs/pick-classifier/bundle
    """

    bundle: str
    """A bundle's folder, the name of an installed one, or hf:OWNER/NAME on the Hugging Face Hub."""
    data: Path
    """A capture, any folder of images, or a LeRobotDataset v3.0."""
    out: Path | None = None
    """Folder to write; default: DATA/scores/NAME."""
    success_label: str = "success"
    """Label or sub-folder of the successes; if there is none, images have no labels."""
    camera: str | None = None
    """Of a LeRobot dataset: key of its images; not needed if there is one only."""
    label_column: str | None = None
    """Of a LeRobot dataset: its column of 0 and 1 that says what is a success, or none; by default
    next.success, else next.reward, if it has one."""
    threshold: Annotated[float, Ge(0), Le(1)] | None = None
    """Probability from which success is claimed; default: the bundle's."""
    overwrite: bool = False
    """Replace the scores that are there."""


@dataclass(frozen=True)
class WatchConfig:
    """Score a camera's images as they come, and label them by keys.

    Shows image, probability, claim and OOD score, latency and what the camera does wrong, in a
    window or in the terminal. Keys: s success, f failure, u undo, n new episode, q quit.

    Examples:
        vinoreward watch --camera 0
        vinoreward watch --camera 0 --bundle runs/clicks --on-claim "python open_gripper.py"
        vinoreward watch --camera rtsp://10.0.0.7/stream --bundle runs/clicks --hz 10 --no-window
        vinoreward watch --camera pick.mp4 --bundle runs/clicks --out data/more
        vinoreward watch --camera 0 --learn --network timm:resnet10t --pretrained
    """

    camera: str
    """Number of a camera, rtsp://ADDRESS, a video file, or a folder of images."""
    bundle: str | None = None
    """A bundle's folder, the name of an installed one, or hf:OWNER/NAME on the Hugging Face Hub.
    None: images are shown and labelled only."""
    hz: Annotated[float, Gt(0), Le(1000)] | None = None
    """Deadlines per second: an image is late when its claim takes longer. A video or folder gives
    as many images. Default: the camera's or video's rate, of a folder 30."""
    out: Path = Path("data/clicks")
    """Dataset of the labels; a later session adds to it."""
    learn: bool = False
    """Score by what the labels teach: after each one the last layer of --network, of --weights or
    --pretrained, is fitted again, and the rates that the labels support are shown."""
    network: str = "squeezenet1_1"
    """With --learn: as in finetune."""
    weights: Path | None = None
    """With --learn: weights of the network (.safetensors, or .pt loaded as data only)."""
    pretrained: bool = False
    """With --learn: weights that torchvision or timm publish for the network."""
    on_claim: Annotated[str | None, RUNS_CODE] = None
    """Program to run, without a shell, when success is claimed: one at a time, with the environment
    variables VINOREWARD_TIME (seconds since 1970) and VINOREWARD_PROBABILITY."""
    window: bool = True
    """Open a window where there is a display."""


@dataclass(frozen=True, kw_only=True)
class AuditTask(Task):
    """The task of a classifier under audit, as its bundle records it, and who plays."""

    env: Annotated[str, RUNS_CODE] = ""
    """Gymnasium id of an environment to play in, to find out whether claims depend on their cause
    and which failures are claimed. Arguments, truth and image source are the bundle's, or else
    those of --data. Default: none."""
    policy: Annotated[str | None, RUNS_CODE] = None
    """Who plays, as in capture; default: at random."""
    interventions: Annotated[str | None, RUNS_CODE] = None
    """FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION of the environment (env.unwrapped) that returns a
    list of vinoreward.Intervention and vinoreward.SearchSpace; default: what the environment
    offers."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of images, corruptions, states and episodes."""


@dataclass(frozen=True, kw_only=True)
class AuditConfig(AuditTask):
    """Try to cheat a classifier: what does it claim under other light, from a dead camera, ...?

    Writes report.html and audit.json: whether it is safe (rewards no failures; else the exit status
    is 3) and robust (misses no successes). Images should be new to it, from many episodes.

    Examples:
        vinoreward capture --frames 1500 --seed 7 --out data/audit
        vinoreward audit --bundle panda-hover-classifier --data data/audit \\
            --env PandaHoverRandom-v0
        vinoreward audit --bundle runs/mine-classifier/bundle --data data/mine --pairs photos
        vinoreward audit --judge mine.py:success --data data/mine --max-calls 5000
    """

    bundle: str | None = None
    """A bundle's folder, the name of an installed one, or hf:OWNER/NAME on the Hugging Face Hub."""
    judge: Annotated[str | None, RUNS_CODE] = None
    """Instead of a bundle: a judge, FILE.py:FUNCTION, as in calibrate. Its code is run."""
    max_calls: Calls | None = None
    """With --judge: most images that the judge may score now; the same command goes on later."""
    data: Path
    """A capture, or an image folder with one folder per class. Of what the bundle was trained on,
    only the part kept for its test is used."""
    pairs: Path | None = None
    """A folder with success/01.png and, of the same scene without its cause, removed/01.png or
    moved/01.png, and so on."""
    learn_steps: Annotated[int, Ge(0)] = 2000
    """With --env: train a policy on the reward for so many steps, and compare its claims with the
    truth; 0 for none."""
    out: Path | None = None
    """New folder for the report; default: runs/NAME-audit."""


@dataclass(frozen=True, kw_only=True)
class MendConfig(AuditTask):
    """Refit a classifier from labels, audit it again, and keep the old one if the new one is worse.

    Trains from the bundle's own weights, on the labelled images and a sample of its old data. The
    exit status is 3 where the old bundle is kept.

    Examples:
        vinoreward mend --bundle runs/mine-classifier/bundle --data data/mine \\
            --labels runs/mine-policy --out runs/mine-mended
        vinoreward mend --bundle runs/mine-classifier/bundle --data data/mine \\
            --labels runs/mine-audit/findings --env my_package:MyEnv-v0 --out runs/mine-mended
        vinoreward mend --resume --out runs/mine-mended
    """

    bundle: str = "runs/hover-classifier"
    """A bundle of vinoreward finetune: its folder, or the name of an installed one."""
    data: Path = Path("data/hover")
    """The images it was trained on, so that it forgets nothing; only its training part is used."""
    labels: tuple[Path, ...] = ()
    """Folders with a labels.jsonl of vinoreward label or audit, and runs whose claims carry the
    truth."""
    out: Path = Path("runs/mended")
    """Run folder; the bundle is written to OUT/bundle if it is no worse."""
    target_fpr: Annotated[float, Gt(0), Lt(1)] | None = None
    """False-positive rate of the threshold, with 95 % confidence; default: keep the recall that the
    bundle has on the validation part of --data."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, with its recorded configuration."""


@dataclass(frozen=True)
class TrainVaeConfig:
    """Train a state encoder (a variational autoencoder) and save it as a bundle.

    Takes a capture or any folder of images. If the capture recorded positions, the latent is
    trained to show them, and the model card says how well a linear probe reads them from it.

    Examples:
        vinoreward train-vae --data data/hover --image-size 64 64 --out runs/encoder
        vinoreward train-vae --resume --out runs/encoder
        vinoreward train-vae --data data/hover --beta 300 --steps 2000 --out runs/encoder
    """

    data: Path = Path("data/hover")
    """A capture, or any folder of images; needs no labels."""
    out: Path = Path("runs/encoder")
    """Run folder; the bundle is written to OUT/bundle."""
    image_size: tuple[int, int] | None = None
    """Resize images to HEIGHT WIDTH; default: the images' own size."""
    latent: Annotated[int, Ge(1), Le(4096)] = 32
    """Length of the latent vector."""
    steps: Annotated[int, Ge(1)] = 20_000
    """Training steps, of 64 images each."""
    beta: Annotated[float, Ge(0), Lt(1e6)] = 1.0
    """Weight of the KL divergence; a higher one gives fewer active, broader dimensions."""
    int8: Int8 = "auto"
    """Add an INT8 network. auto: if its latents agree with FP32's and it is faster on this
    processor; on: if they agree, else the command fails; off: no."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of the split, the initial weights, the order and the noise."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, with its recorded configuration."""


@dataclass(frozen=True)
class DoctorConfig:
    """Show what is installed, which backends and devices work, and how to add what is missing.

    Exits with 0 if the core works (wrapping your own environment with a bundle), else with 1.

    Examples:
        vinoreward doctor
        vinoreward doctor --bundle runs/hover-classifier/bundle
    """

    bundle: str | None = None
    """Bundle whose golden frames run on every backend; None: every installed one."""


@dataclass(frozen=True)
class DemoConfig:
    """Capture, fine-tune, check, train, play and report: under 5 minutes on two cores.

    1. capture: labelled images of the arm over, next to and away from the object.
    2. finetune: train a classifier on them, with an INT8 network that makes the same decisions. It
       starts from the shipped bundle's weights, so few images are enough.
    3. check: compare this classifier with the shipped one on new scenes.
    4. train: SAC learns to hover; its only reward is the classifier's.
    5. play: a film, and the true success rate according to the simulator.
    6. report: all results in one HTML file.

    After Ctrl-C, run the same command again: finished stages are skipped, and the interrupted one
    resumes.

    Examples:
        vinoreward demo
        vinoreward demo --out runs/second --seed 1
        vinoreward demo --out runs/moving --env PandaHoverRandom-v0
        vinoreward demo --out runs/scratch --from-scratch
    """

    out: Path = Path("runs/demo")
    """Folder for all files."""
    seed: Seed = 0
    """Seed of every stage; the images always differ from those of the shipped bundle."""
    from_scratch: bool = False
    """Start the classifier from random weights. It then needs 24000 images and 8 epochs: about 15
    minutes on two cores."""
    env: str = "PandaHover-v0"
    """Training environment; PandaHoverRandom-v0 takes some minutes more."""
