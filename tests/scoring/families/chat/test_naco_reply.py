"""Replies of many forms, and what they say. All texts but those marked as a model's are our own."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qaeval_core.families.chat.naco_prompt import make_prompt
from qaeval_core.families.chat.naco_reply import Reply, parse_reply
from wall_clock import cpu_s


def natural(answer: str, n_steps: int) -> Reply:
    """A natural question with its answer."""
    return Reply(
        is_readable=True, is_question=True, is_natural=True, n_steps=n_steps, answer=answer
    )


def unnatural(answer: str | None, n_steps: int) -> Reply:
    """An unnatural question, answered or not."""
    return Reply(
        is_readable=True, is_question=True, is_natural=False, n_steps=n_steps, answer=answer
    )


def unanswerable(n_steps: int) -> Reply:
    """A natural question that the passages do not answer."""
    return Reply(
        is_readable=True,
        is_question=True,
        is_natural=True,
        n_steps=n_steps,
        says_unanswerable=True,
    )


NO_QUESTION = Reply(is_readable=True, is_question=False, is_natural=False)


def unreadable(problem: str) -> Reply:
    """A reply that is asked again."""
    return Reply(is_readable=False, problem=problem)


HEAD = "Verdict: natural; it begins with who\nSteps:\n"
TWO = HEAD + "1. The first passage names Ann.\n2. The second one says where she lived.\n"

# Name of the case -> (reply, what it says).
STEPS = {
    "as asked": (TWO + "Answer: <ans>Lund</ans>", natural("Lund", 2)),
    "brackets": (
        HEAD
        + "1) Ann built it.\n2) She was from Lund.\n3) So it is Lund.\nAnswer: <ans>Lund</ans>",
        natural("Lund", 3),
    ),
    "labels": (
        "Question natural.\nStep 1: Ann built it.\nStep 2: She was from Lund.\n<ans>Lund</ans>",
        natural("Lund", 2),
    ),
    "labels in words": (
        "Natural.\nStep one: Ann built it.\nStep two - she was from Lund.\nAnswer: <ans>Lund</ans>",
        natural("Lund", 2),
    ),
    "labels on one line": (
        "Verdict: natural. Step 1: Ann built it. Step 2: By step 1, Ann was here. <ans>Ann</ans>",
        natural("Ann", 2),
    ),
    "labels as headings": (
        "### Verdict\nnatural\n\n### Step 1\nAnn built it.\n\n### Step 2\nShe was from Lund.\n\n"
        "### Answer\n<ans>Lund</ans>",
        natural("Lund", 2),
    ),
    "bold labels": (
        "**1. Verdict:** The sentence is a question. *Question natural.*\n"
        "**2. Step-by-step reasoning:**\n   - **Step 1:** Ann built it.\n"
        "   - **Step 2:** She was from Lund.\n**3. Answer:** **<ans>Lund</ans>**",
        natural("Lund", 2),
    ),
    "the paper's form": (
        '1. The sentence is a question, as "who" shows. Question natural.\n'
        "2. Step by step reasoning:\n (a) Step 1: The passage names Ann.\n"
        " (b) Step 2: It calls her a miller.\n (c) Step 3: So the miller is Ann.\n"
        "3. Answer: <ans> Ann <ans>",
        natural("Ann", 3),
    ),
    "letters below a number": (
        "1. It is a question and it is natural.\n2. Reasoning:\n   a) Ann built it.\n"
        "   b) She was from Lund.\n3. Answer: <ans>Lund</ans>",
        natural("Lund", 2),
    ),
    "hyphens": (
        HEAD + "- Ann built it.\n- She was from Lund.\nAnswer: <ans>Lund</ans>",
        natural("Lund", 2),
    ),
    "stars": (
        HEAD + "* Ann built it.\n* She was from Lund.\n* Lund it is.\nAnswer: <ans>Lund</ans>",
        natural("Lund", 3),
    ),
    "dots": (HEAD + "• Ann built it.\n• She left.\nAnswer: <ans>Ann</ans>", natural("Ann", 2)),
    "several lines each": (
        HEAD
        + "1. The first passage names Ann.\n   It says that she built the mill,\n   in 1931.\n\n"
        "2. The second one says\nthat she was from Lund.\n\nAnswer: <ans>Lund</ans>",
        natural("Lund", 2),
    ),
    "items inside steps": (
        HEAD + "1. Two people are named:\n   - Ann\n   - Bob\n   - Cleo\n2. Ann is the miller.\n"
        "Answer: <ans>Ann</ans>",
        natural("Ann", 2),
    ),
    "all numbered 1": (
        HEAD + "1. Ann built it.\n1. She was from Lund.\nAnswer: <ans>Lund</ans>",
        natural("Lund", 2),
    ),
    "no header": (
        "1. The sentence is a question without errors.\n2. The passage names Ann.\n"
        "3. It calls her a miller.\n4. Answer: <ans>Ann</ans>",
        natural("Ann", 2),
    ),
    "a header with its list": (
        "Verdict: natural\nSteps: 1. Ann built it. 2. In 1931 she left.\nAnswer: <ans>Ann</ans>",
        natural("Ann", 2),
    ),
    "questions of the instruction answered": (
        '1. Is the sentence a question? Yes, "who" shows it.\n2. Is it natural? Yes.\n'
        "3. The passage says that Ann built it.\n4. <ans>Ann</ans>",
        natural("Ann", 1),
    ),
    "the last step holds the answer": (
        HEAD + "1. The passage names Ann.\n2. The miller is therefore <ans>Ann</ans>.",
        natural("Ann", 2),
    ),
    "the last step is the answer": (
        HEAD + "1. The passage names Ann.\n2. The answer is <ans>Ann</ans>.",
        natural("Ann", 1),
    ),
    "a labeled step is the answer": (
        "Natural.\nStep 1: The passage names Ann.\nStep 2: Answer: <ans>Ann</ans>",
        natural("Ann", 1),
    ),
    "prose": (
        "The question is natural. The passage names Ann, and she was from Lund. <ans>Lund</ans>",
        natural("Lund", 1),
    ),
    "the answer alone": ("<ans>Lund</ans>", natural("Lund", 1)),
    "answer first": (
        "Verdict: natural\nAnswer: <ans>Lund</ans>\nSteps:\n1. Ann built it.\n2. She left.",
        natural("Lund", 2),
    ),
    "chatter after the answer": (
        TWO + "Answer: <ans>Lund</ans>\n\nI hope this helps! I can also:\n- make a list\n"
        "- write another question\n- explain step 1 again",
        natural("Lund", 2),
    ),
    "another case after the answer": (
        TWO + "Answer: <ans>Lund</ans>\n\nPassage:\nBob left.\n\nSentence:\nWho left?\n\n"
        "Verdict: unnatural\nSteps:\n1. Bob left.\nAnswer: <ans>Bob</ans>",
        natural("Lund", 2),
    ),
    "thoughts": (
        "<think>\nNot a question? Step 1: look. Step 2: <ans>Bob</ans>?\n</think>\n"
        + TWO
        + "Answer: <ans>Lund</ans>",
        natural("Lund", 2),
    ),
    "thoughts without their first mark": (
        "Is it a question? It is not a question.\nWait.\n</think>\n"
        + TWO
        + "Answer: <ans>Lund</ans>",
        natural("Lund", 2),
    ),
    "a code fence": ("```text\n" + TWO + "Answer: <ans>Lund</ans>\n```", natural("Lund", 2)),
    "windows lines": ((TWO + "Answer: <ans>Lund</ans>").replace("\n", "\r\n"), natural("Lund", 2)),
    "steps in Chinese": (
        "Verdict: natural\nSteps:\n1. 第一段说安建了桥。\n2. 安来自隆德。\nAnswer: <ans>隆德</ans>",
        natural("隆德", 2),
    ),
}

MARKS = {
    "capitals and blanks": (TWO + "Answer: < ANS > Lund < / Ans >", natural("Lund", 2)),
    "the long word": (TWO + "<answer>Lund</answer>", natural("Lund", 2)),
    "square brackets": (TWO + "[ans]Lund[/ans]", natural("Lund", 2)),
    "slash behind": (TWO + "Answer: <ans>Lund<ans/>", natural("Lund", 2)),
    "opened twice": (TWO + "Answer: <ans>Lund<ans>", natural("Lund", 2)),
    "escaped": (TWO + r"Answer: \<ans\>Lund\</ans\>", natural("Lund", 2)),
    "as HTML": (TWO + "Answer: &lt;ans&gt;Lund&lt;/ans&gt;", natural("Lund", 2)),
    "never closed": (TWO + "Answer: <ans>the town of Lund", natural("the town of Lund", 2)),
    "never closed, chatter": (TWO + "Answer: <ans>Lund\n\nThat was easy.", natural("Lund", 2)),
    "never opened": (TWO + "Answer: Lund</ans>", natural("Lund", 2)),
    "on lines of their own": (TWO + "Answer:\n<ans>\nLund\n</ans>", natural("Lund", 2)),
    "over two lines": (
        TWO + "Answer: <ans>the old town\nof Lund</ans>",
        natural("the old town of Lund", 2),
    ),
    "quotes around": (TWO + 'Answer: <ans>"Lund"</ans>', natural("Lund", 2)),
    "quotes around and inside": (
        TWO + 'Answer: <ans>“the "Old" Town”</ans>',
        natural('the "Old" Town', 2),
    ),
    "two quoted names": (
        TWO + 'Answer: <ans>"Ann" and "Bob"</ans>',
        natural('"Ann" and "Bob"', 2),
    ),
    "bold inside": (TWO + "Answer: <ans>**Lund**</ans>", natural("Lund", 2)),
    "a number": (TWO + "Answer: <ans>1,931.5 %</ans>", natural("1,931.5 %", 2)),
    "parts of an answer marked": (
        TWO + "Answer: <ans>Ann</ans>, <ans>Bob</ans> and <ans>Cleo</ans>",
        natural("Ann, Bob and Cleo", 2),
    ),
    "marks in steps too": (
        HEAD + "1. The miller is <ans>Ann</ans>.\n2. She was from Lund.\nAnswer: <ans>Lund</ans>"
        "\nNote: <ans>Ann</ans> is no place.",
        natural("Lund", 2),
    ),
    "a second thought": (
        "Natural. First I read <ans>Ann</ans>.\nNo: it is\n<ans>Bob</ans>",
        natural("Bob", 1),
    ),
    "the instruction said back": (
        "I put the answer between <ans> and </ans>.\n" + TWO + "Answer: <ans>Lund</ans>",
        natural("Lund", 2),
    ),
    "no marks, one label": (TWO + "Answer: Lund", natural("Lund", 2)),
    "no marks, a bold label": (TWO + "**Final answer:** Lund", natural("Lund", 2)),
    "no marks, a label above": (TWO + "Answer:\nLund", natural("Lund", 2)),
    "no marks, the same label twice": (
        TWO + "Answer: Lund\nFinal answer: lund",
        natural("Lund", 2),
    ),
}

VERDICTS = {
    "not a question": ("Not a question.", NO_QUESTION),
    "not a question, in the prompt's quotes": ('Verdict: "not a question"', NO_QUESTION),
    "not a question, in other quotes": ("Verdict: “not a question”", NO_QUESTION),
    "no question": ("Verdict: no question\n\nVerdict: no question", NO_QUESTION),
    "not a question, labeled": ("Verdict: not a question; it states a fact.", NO_QUESTION),
    "not a question, bold and reasoned": (
        "**Verdict:** *not a question* – the sentence is a statement and has no question word.",
        NO_QUESTION,
    ),
    "not a question, the paper's form": (
        "1. The sentence is not phrased as a question. Output: 'not a question'",
        NO_QUESTION,
    ),
    "not a question, contracted": ("This isn't a question, it's a list of words.", NO_QUESTION),
    "a statement": ("1a. No. The sentence is a statement.", NO_QUESTION),
    "asks nothing": ("The sentence asks nothing, so I stop here.", NO_QUESTION),
    "not a question between marks": (
        "Verdict: see below\nAnswer: <ans>not a question</ans>",
        NO_QUESTION,
    ),
    "not a question, then chatter": (
        "Not a question.\n\nIf you have a question about the passage, I can answer it.",
        NO_QUESTION,
    ),
    "not a question in the end": (
        "Steps:\n1. The sentence tells where Ann lived.\n2. Therefore it is not a question.",
        NO_QUESTION,
    ),
    "not a question, yet answered": (
        "Verdict: not a question\nSteps:\n1. Ann built it.\nAnswer: <ans>Ann</ans>",
        NO_QUESTION,
    ),
    "unnatural": ("Question unnatural", unnatural(None, 1)),
    "unnatural and answered": (
        "Verdict: unnatural, the word order is wrong\nSteps:\n1. Ann built it.\n2. Ann is from "
        "Lund.\nAnswer: <ans>Lund</ans>",
        unnatural("Lund", 2),
    ),
    "unnatural, the paper's form": (
        "1. (a) It is a question because of the question mark. (b) Question unnatural: the verb is "
        "doubled.\n2. Step 1: Ann built it.\n3. Answer: <ans>Ann<ans>",
        unnatural("Ann", 1),
    ),
    "unnatural in prose": (
        "The sentence is a question, but it sounds unnatural.\n<ans>Ann</ans>",
        unnatural("Ann", 1),
    ),
    "not natural": (
        "Verdict: not natural; two verbs.\nAnswer: <ans>Ann</ans>",
        unnatural("Ann", 1),
    ),
    "is it natural? no": (
        "Is it a question? Yes.\nIs it natural? No.\nAnswer: <ans>Ann</ans>",
        unnatural("Ann", 1),
    ),
    "no well-formed question": (
        "Verdict: this is not a well-formed question.\nAnswer: <ans>Ann</ans>",
        unnatural("Ann", 1),
    ),
    "unnatural between marks": ("Answer: <ans>Question unnatural</ans>", unnatural(None, 1)),
    "not unnatural": ("Verdict: not unnatural\nAnswer: <ans>Ann</ans>", natural("Ann", 1)),
    "natural, not unnatural": (
        "The question is natural and in no way odd, so not at all unnatural.\n<ans>Ann</ans>",
        natural("Ann", 1),
    ),
    "not a question of taste": (
        "It is natural; this is not a question of taste.\nAnswer: <ans>Ann</ans>",
        natural("Ann", 1),
    ),
    "no question mark": (
        "There is not a question mark, but the sentence asks who came. Natural.\n<ans>Ann</ans>",
        natural("Ann", 1),
    ),
    "unnatural in the sentence": (
        'The sentence "Why did the light look unnatural to Ann?" is a question.\n<ans>fog</ans>',
        natural("fog", 1),
    ),
    "unnatural in the passage": (
        "Natural question.\nThe passage calls the light unnatural.\nAnswer: <ans>fog</ans>",
        natural("fog", 1),
    ),
    "unnatural in a step": (
        HEAD
        + "1. Ann found the light unnatural.\n2. It was not a question to her.\n<ans>fog</ans>",
        natural("fog", 2),
    ),
    "the choice said back": (
        "Verdict: natural, unnatural or not a question\nSteps:\n1. Ann\nAnswer: <ans>Ann</ans>",
        natural("Ann", 1),
    ),
    "the form said back, then a verdict": (
        "Verdict: your verdict, and why\nVerdict: unnatural\nAnswer: <ans>Ann</ans>",
        unnatural("Ann", 1),
    ),
    "a verdict below the answer": (
        "Answer: <ans>Ann</ans>\nVerdict: unnatural",
        unnatural("Ann", 1),
    ),
    "no verdict": ("Steps:\n1. Ann came.\nAnswer: <ans>Ann</ans>", natural("Ann", 1)),
}

UNANSWERABLE = {
    "as asked": (TWO + "Answer: <ans>unanswerable</ans>", unanswerable(2)),
    "in a sentence between marks": (
        TWO + "Answer: <ans>The passage does not say where she lived.</ans>",
        unanswerable(2),
    ),
    "not enough": (
        TWO + "Answer: <ans>There is not enough information in the passage</ans>",
        unanswerable(2),
    ),
    "bare": (TWO + "Answer: <ans>Not mentioned in the passage</ans>", unanswerable(2)),
    "without marks": (TWO + "Answer: The passages do not answer this.", unanswerable(2)),
    "last sentence": (
        TWO + "The question cannot be answered from the passages.",
        unanswerable(2),
    ),
    "alone": ("The passage doesn't mention any miller.", unanswerable(1)),
    "politely": (
        "I'm sorry, but the passage does not contain the answer to this question.",
        unanswerable(1),
    ),
    "no information": (
        "Verdict: natural\nThere is no information on it in the text.",
        unanswerable(1),
    ),
    "said of a step, yet answered": (
        HEAD
        + "1. Passage 1 does not say who built it.\n2. Passage 2 does.\nAnswer: <ans>Ann</ans>",
        natural("Ann", 2),
    ),
    "the paper's form": (
        "1. It is a question. Question natural.\n2. Step 1: Ann is named.\n"
        "3. Answer: <ans> No answer in the passage <ans>",
        unanswerable(1),
    ),
}

UNREADABLE = {
    "empty": ("", unreadable("empty_reply")),
    "blank": (" \n\t\n", unreadable("empty_reply")),
    "thoughts alone": ("<think>Who came? Let me see", unreadable("empty_reply")),
    "a refusal": ("I'm sorry, but I can't help with that.", unreadable("refusal")),
    "a short refusal": ("I cannot answer this question.", unreadable("refusal")),
    "an excuse": ("As an AI language model I have no opinion.", unreadable("refusal")),
    "cut off in the steps": (TWO, unreadable("no_answer")),
    "cut off after what a passage leaves out": (
        HEAD + "1. The first passage does not mention Lund.",
        unreadable("no_answer"),
    ),
    "a verdict alone": ("Verdict: natural", unreadable("no_answer")),
    "an answer in prose": ("It must have been Ann.", unreadable("no_answer")),
    "JSON": (
        '{"verdict": "natural", "steps": ["Ann came."], "span": "Ann"}',
        unreadable("no_answer"),
    ),
    "empty marks": (TWO + "Answer: <ans></ans>", unreadable("empty_answer")),
    "dots between marks": (TWO + "Answer: <ans>...</ans>", unreadable("empty_answer")),
    "the form said back": (
        "Verdict: your verdict, and why\nSteps:\n1. the first step\n2. the second step\n"
        "Answer: <ans>the answer</ans>",
        unreadable("empty_answer"),
    ),
    "the mark at the very end": (TWO + "Answer: <ans>", unreadable("empty_answer")),
    "labels that disagree": (TWO + "Answer: Lund\nAnswer: Skarn", unreadable("ambiguous_answer")),
    "a label and a lecture": (
        TWO + "Answer: well, " + "there is much to be said for both of the towns, " * 3,
        unreadable("no_answer"),
    ),
    "another language": ("Je ne peux pas le dire.", unreadable("no_answer")),
}

# Replies of SmolLM2-135M-Instruct, temperature 0.7, to a first wording of the prompt on the sample
# corpus; cut.
OF_A_MODEL = {
    "a verdict alone": (
        "Verdict: not natural; the lighthouse on Gannet Head is an example of a lighthouse on a "
        "cliff, with no relation to the sea.",
        unnatural(None, 1),
    ),
    "the example's answer": (
        'Verdict: hundred; it begins with "how many", asks for a number of, and starts with '
        '"the", questions about the number of\nSteps:\n1. The first passage says that Maud '
        "Ellery designed the Orvane Track Marathon, which was first run in 1983.\n2. The second "
        "passage says that Maud Ellery is known for the lighthouse on Skarn.\nAnswer: <ans>the "
        "lighthouse on Skarn</ans>",
        natural("the lighthouse on Skarn", 2),
    ),
    "no form at all": (
        "The sentence is unclear, and the passage provides details about the audio recording. It "
        "is unclear, and the narrator is unable to provide a clear answer. The passage does not "
        "provide enough information to answer the question.",
        unanswerable(1),
    ),
    "an answer without a label": (
        "The month when the blindfold evening is held is February.",
        unreadable("no_answer"),
    ),
    "a label three times": (
        "The answer is:\n\nThe sentence is describing the circumstances of a radio play.\nThe "
        "answer is:\n\nThe sentence is asking for the answer.\nThe answer is:\n\nThe passage is "
        "giving the answer to a question.",
        unreadable("ambiguous_answer"),
    ),
    "never closed": (
        "Verdict: The only thing that doesn't Merrow bind the joint with is the fabric by which he "
        "makes it.\nThe answer is:\n<ans>the tree of the Plough, which is the only one used.",
        natural("the tree of the Plough, which is the only one used.", 1),
    ),
    "steps that count": (
        "1. First step: The sentence is a factual account of a past event.\n2. Second step: The "
        "sentence is a truth and the full truth about a past event.\n3. Third step: The sentence "
        "is a moment in time.\n\nThe answer is: 1\n\nThe answer is 1",
        natural("1", 3),
    ),
    "the instruction for a passage": (
        "Verdict: your verdict\nPassage:\nThe passage is worth examining. A question is asked, and "
        "the answer is provided. The answer is given.",
        unreadable("no_answer"),
    ),
}

# Replies of the same model behind ``transformers serve``, to the prompt and its reminder as they
# are, temperature 0.7, at most 256 tokens; cut.
OF_A_SERVED_MODEL = {
    "right, below a label": (
        "The sentence concludes the passage by asking a question. It is not possible to list every "
        'step in the passage, but we can ask:\n\nWhat is the answer to the question: "who is the '
        'youngest of the five makers?"\nThe answer is:\nBenoit Ménard\n\nThis is the only answer '
        "to the question.",
        natural("Benoit Ménard", 1),
    ),
    "a verdict that is none": (
        'Verdict: unsealed; it starts with "which", asks for one thing and has no error\nSteps:\n'
        "1. First passage says that Maud Ellery designed the ferry.\n"
        "2. Second passage says that Bruno Halvard has worked the ferry since 1988.\n"
        "3. The third passage says that the ferry is held in the crane.\n"
        "4. The fourth passage says that the ferry takes seven minutes to come back.\n"
        "5. The fifth passage says that the ferry carries six cars.\n"
        "6. The sixth passage says that the ferry carries six cars.\n"
        "Answer: <ans>the ferry on Skarn, which is held in the crane</ans>",
        natural("the ferry on Skarn, which is held in the crane", 6),
    ),
    "two labels that agree": (
        'Verdict: constellation; it begins with "in the constellation of", asks for one thing and '
        "has no error\nSteps:\n1. The first passage has a second passage with a question that "
        'asks, "How is it that a comet can be found anywhere in the sky?"\n2. The second passage '
        'asks, "In which constellation did the comet, which was found twice in one night in 1957, '
        'see a smudge near the tail of the Swan?"\nAnswer: within the constellation of Cassiopeia'
        "\n\nThe answer is within the constellation of Cassiopeia.",
        natural("within the constellation of Cassiopeia", 2),
    ),
    "a second verdict and a note": (
        "Verdict: not the one; it is the owner of the Lantern Street Chess Club, Philippa Grange\n"
        'Steps:\n1. The second passage asks for one thing, and it asks the answer to "who has been '
        'president of the club since 1996".\n2. The first passage tells the story of the Lantern '
        "Street Chess Club meeting in 1996.\nAnswer: Philippa Grange\nVerdict: not the one; it is "
        "not Philippa Grange; it is the owner of the Lantern Street Chess Club\n"
        "Note: the answer is indeed Philippa Grange.",
        natural("Philippa Grange", 2),
    ),
    "cut off inside the mark": (
        'Verdict: the librarian; it begins with "the brewer used to", asks for one thing and has '
        "no error\nSteps:\n1. The first passage says that the librarian removed the barrel of the "
        "same size that the brewer had removed last month.\n2. The next passage says that the "
        "librarian removed the barrel of the same size that the barrel of the same size that the "
        "brewer used to remove was removed last month.\nAnswer: the barrel that the brewer used to "
        "remove was removed last month\nAnswer: <ans>the barrel that the brewer used",
        natural("the barrel that the brewer used", 2),
    ),
    "a list after the answer": (
        "Verdict: it was the fuse of the volcano on Mount Serranum; it makes a mountain under the "
        "sea\nSteps:\n"
        '1. The first passage says that the volcano on Mount Serranum was "crisis".\n'
        '2. The second passage says that the volcano on Mount Serranum is "crisis".\n'
        '3. The third passage says about the "crisis".\n'
        "Answer: it was the fuse of the volcano on Mount Serranum; it makes a mountain under the "
        "sea\nGoals:\n- you must understand why it is important to explain the sentence;\n"
        "- you cannot, however, try to explain it in a more complex way;\n"
        "- you must keep trying to understand what is written;",
        natural(
            "it was the fuse of the volcano on Mount Serranum; it makes a mountain under the sea", 3
        ),
    ),
    "a joke after the answer": (
        "Sentence: How many entries are there in the dictionary of Søren Ålund?\nVerdict: your "
        "verdict\nSteps:\n1. The first step\n2. The second step\nAnswer: 30\n\nIn that order, you "
        "will have:\n- the first step\n- the second step\n- the third step\n- The final step\n\n"
        "Here's the corrected sentence:\n\nNot a question:\n\nSøren Ålund had always been a clever "
        "one-word critic. He said he didn't know how the rest of him did it. He told a joke at the "
        "end of the day.\n\nWhich of those items could be called a question?",
        natural("30", 2),
    ),
    "an answer that there is none": (
        "Verdict: no; there is no answer on the passage\nSteps:\n1. The passage gives the order "
        "that the bill went past ten minutes past four, which is the upper house's upper house's "
        "upper house.\n2. The sentence goes to be asked to the question which is on the upper "
        "house's upper house's upper house.\nAnswer: no; no answer; the answer is no; there is no "
        "answer on the passage\n",
        unanswerable(2),
    ),
    "a verdict that there is no answer": (
        "Verdict: no; the issue is not mentioned in the passage so no answer is provided.",
        unanswerable(1),
    ),
    "not a question, in the place of the answer": (
        'The answer for the passage is: "The Ninth Passenger" is not a question.',
        NO_QUESTION,
    ),
    "not a question, with the form said back": (
        'Verdict: not a question; it begins with "Verdict:" and ends with "Answer:"\nSteps:\n'
        "<ans>the answer</ans>",
        NO_QUESTION,
    ),
    "neither natural nor a question": (
        "Verdict: not natural; the sentence is not a question. It is a statement that goes beyond "
        "what is expected of a question.\n\nSteps:\n1. The sentence begins with the verb "
        '"twice".\n2. The sentence goes on to describe an event that is not what it seems.\n\n'
        "Note, the sentence is written as though the sentence is a statement.",
        NO_QUESTION,
    ),
    "the form said back beside a verdict": (
        "Verdict: her block<ans>the answer</ans>",
        unreadable("empty_answer"),
    ),
    "two answers": (
        "Verdict: it is not a play; it is a novel; it is not a movie; and it is not a story.\n"
        "Answer: it is not a play; it is a literary work, but it is a story.\nAnswer: it is not a "
        "movie, it is a literary work, and it is a literary work.",
        unreadable("ambiguous_answer"),
    ),
    "steps in steps, cut off": (
        'Verdict:\n1. Your verdict: "The true price of a kilo of Tomélin is €3."\n'
        "2. Step 1: The first step: The passage asks the question.\n"
        "3. Step 2: The second step: The passage asks a question.\n"
        "4. Step 3: The third step: The passage asks a question.\n",
        unreadable("no_answer"),
    ),
}

GROUPS = {
    "steps": STEPS,
    "marks": MARKS,
    "verdicts": VERDICTS,
    "unanswerable": UNANSWERABLE,
    "unreadable": UNREADABLE,
    "model": OF_A_MODEL,
    "served model": OF_A_SERVED_MODEL,
}
CASES = [
    pytest.param(text, expected, id=f"{group}: {name}")
    for group, cases in GROUPS.items()
    for name, (text, expected) in cases.items()
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_a_reply_says_what_a_reader_sees(text: str, expected: Reply) -> None:
    """A form that is read wrongly scores a good question 0, or a broken reply at all."""
    assert parse_reply(text) == expected


def test_there_are_enough_replies() -> None:
    """The table is what shows that reading is lenient; it must not shrink unseen."""
    assert len(CASES) >= 40


def test_no_example_of_the_prompt_is_a_broken_reply() -> None:
    """What the model is shown must itself be readable, with the steps that it numbers."""
    shown = make_prompt(question="?", passages=["-"], one_shot=True)[1]["content"]
    assert parse_reply(shown) == natural("the lighthouse on Skarn", 2)


_MARKS = ("<ans>", "</ans>", "Answer:", "Verdict:", "Step 1:", "1.", "-", '"', "\n", " ")
_WORDS = ("not a question", "unnatural", "natural", "not", "the passage does not say", "Ann", "👍")
pieces = st.sampled_from([*_MARKS, *_WORDS]) | st.text(max_size=3)


@settings(max_examples=300, deadline=None)
@given(st.lists(pieces, max_size=14).map("".join))
def test_whatever_comes_is_read_or_says_why_not(text: str) -> None:
    """A reply that breaks the parser would lose a row that was paid for."""
    reply = parse_reply(text)
    assert reply.is_readable == (reply.problem is None)
    if not reply.is_readable:
        assert reply == unreadable(str(reply.problem))
    elif not reply.is_question:
        assert reply == NO_QUESTION
    else:
        assert reply.n_steps >= 1
        assert not (reply.says_unanswerable and reply.answer)
        assert not reply.is_natural or reply.says_unanswerable or reply.answer
    if reply.answer is not None:
        assert reply.answer == " ".join(reply.answer.split()) != ""


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        " ",
        "\n",
        "<ans>",
        "</ans>",
        "not ",
        "Step 1: ",
        "1. ",
        '"',
        "the passage ",
        "<think>",
        "“",
        "*",
    ],
)
def test_a_long_reply_takes_no_time(piece: str) -> None:
    """Models that repeat themselves reach max_tokens; a quadratic pattern would hold an actor."""
    assert cpu_s(lambda: parse_reply((piece * 40_000)[:40_000])) < 1.0
