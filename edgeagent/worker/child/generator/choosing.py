"""Reads the choices of a request: texts that could be the whole answer to its prompt."""

from __future__ import annotations

from edgeagent.engine.choices import Choices
from edgeagent.errors import InvalidRequest, NotSupported
from edgeagent.text.vocabulary import Vocabulary
from edgeagent.types import GenerateRequest
from edgeagent.worker.child.prompt import ReadPrompt


def read_choices(request: GenerateRequest, prompt: ReadPrompt, vocabulary: Vocabulary, max_tokens: int) -> Choices:
    """Return the tokens of a request's choices, each of which may have at most `max_tokens`.

    A choice is the text that the model would write behind the prompt, so control tokens in it are plain text. An end of
    the answer follows it: otherwise "yes" would be likelier than "yes, please" whatever the prompt says, since its
    probability would include that of all answers that begin with it.

    Raise InvalidRequest for a choice that is too long, or NotSupported if the prompt opens the model's reasoning.
    """
    if prompt.open_reasoning is not None:
        raise NotSupported(
            "This model always reasons before it answers, so none of the choices could follow the prompt. Serve a "
            "model that can answer at once.",
            param="model",
        )
    tokens = tuple(tuple(vocabulary.tokenize(text, parse_special=False)) for text in request.choices)
    for index, each in enumerate(tokens):
        if not 0 < len(each) <= max_tokens:
            raise InvalidRequest(
                f"choices[{index}] has {len(each)} tokens of this model; it must have 1 to {max_tokens}",
                param=f"choices[{index}]",
            )
    return Choices(tokens, vocabulary.end_tokens)
