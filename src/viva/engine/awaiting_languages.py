"""The tables of `awaiting_words` for languages other than English, and how the language of a text is told.

Here a question with "you" or "shall I" in it is put to the user. Where a language has no table, question marks do.
"""

from typing import Final

from viva.engine.awaiting_words import ENGLISH, Language, Pattern, language

_GERMAN = language(
    answers=r"(?:ja|nein|doch|weil|natürlich|nicht)\b",
    nothing=(("bitte", r"\b(?:beachten|warten|geduld|augenblick|moment|denken sie|bedenken|wenden sie|entschuldig)"),),
    closing=(
        ("sonst noch", r"\?"),
        ("noch etwas", r"\?"),
        ("noch bei", r"\?"),
        ("noch weiter", r"\?"),
        ("weitere fragen", r"\?|lassen sie|sagen sie|melden"),
    ),
    question=(("?", r"\b(?:sie|ihnen|ihre?[nmrs]?|du|dir|dein\w*|soll ich|darf ich|kann ich|passt)\b"),),
    request=(
        (
            "bitte",
            (
                r"\b(?:teilen?|geben|gib|nennen?|bestätigen?|senden?|schicken?|schick|wählen?|antworten?|sagen?|sag|beschreiben?"
                r"|schreiben?|schreib|laden?|tragen|prüfen|überprüfen|entscheiden?|erklären?|angeben|eingeben|mitteilen)\b"
            ),
        ),
        ("brauche", r"\b(?:ich brauche|brauche ich|wir brauchen|brauchen wir)\b(?!.*\b(?:zeit|moment)\b)"),
        ("benötige", r"\b(?:ich benötige|benötige ich|wir benötigen|benötigen wir)\b(?!.*\b(?:zeit|moment)\b)"),
        ("wissen", r"\blass(?:en sie)? (?:mich|uns|es mich) wissen\b"),
        ("sie mir", r"\b(?:sagen|nennen|geben|schicken|senden|teilen) sie mir\b"),
        ("sag mir", ""),
        ("bescheid", r"\b(?:gib|geben|sag|sagen)\b"),
        ("sobald sie", r"\b(?:bestätig|zustimm|mitteil|send|schick|antwort|zugestimmt|entschieden)"),
        ("antworten sie", ""),
        ("wählen sie", ""),
    ),
    courtesy=(("", r"^(?:danke|vielen dank|gerne|schönen|kein problem|alles klar)"),),
)

_FRENCH_GIVE = (
    r"(?:indiqu|confirm|précis|fourni|chois|sélectionn|saisi|répond|communiqu|envoy|entre|donn|transmet|valid|vérifi|décri"
    r"|partag|join|renseign|dire|faire savoir)"
)
_FRENCH = language(
    answers=r"(?:oui|non|parce que|car|en effet|bien sûr)\b",
    nothing=(("veuillez", r"veuillez (?:patienter|noter|trouver|attendre|nous excuser|consulter|contacter|vous)"),),
    closing=(
        ("autre chose", r"\?"),
        ("autres questions", r"\?|savoir|dites"),
        ("autre question", r"\?"),
        ("aider davantage", r"\?"),
    ),
    question=(("?", r"\b(?:vous|votre|vos|tu|te|ton|ta|tes|dois-je|puis-je)\b|-(?:vous|tu)\b"),),
    request=(
        ("veuillez", rf"veuillez (?:bien )?(?:me |nous |m'|le |la |les )?{_FRENCH_GIVE}"),
        ("merci de", rf"merci de (?:bien vouloir )?(?:me |nous |m')?{_FRENCH_GIVE}"),
        ("pas à me", rf"hésitez pas à me {_FRENCH_GIVE}"),
        ("besoin d", r"\bj'(?:ai|aurai|aurais) .*besoin d(?!.*\b(?:instant|moment|temps)\b)"),
        ("-moi", r"\b(?:dites|dis|indiquez|donnez|envoyez|confirmez|faites|précisez|communiquez)-moi\b"),
        ("confirmez", ""),
        ("choisissez", ""),
        ("répondez", ""),
        ("précisez", ""),
        ("que vous", r"\b(?:dès|une fois) que vous (?:aurez|avez|m'|confirm)"),
    ),
    courtesy=(("", r"^(?:merci|bonne|je vous en prie|avec plaisir|très bien|parfait)"),),
)

_SPANISH = language(
    answers=r"(?:sí|porque|claro|por supuesto)\b|no[,.]",
    nothing=(("esper", r"\b(?:espere|espera|un momento)\b"), ("tenga en cuenta", ""), ("ten en cuenta", "")),
    closing=(
        ("algo más", r"\?"),
        ("otra cosa", r"\?"),
        ("otra pregunta", r"\?"),
        ("más preguntas", r"\?|hágame|avíse|dígame"),
    ),
    question=(
        (
            "?",
            (
                r"\b(?:ustedes|usted|sus?|le|te|tus?|desea\w*|quier\w*|prefier\w*|podría\w*|pued\w+|necesita\w*|gustaría|hago|reservo"
                r"|envío|procedo|debo)\b"
            ),
        ),
    ),
    request=(
        (
            "por favor",
            (
                r"(?:ind[ií]qu|indica|confirm|proporcion|d[ií]game|dime|env[ií]|elij|elige|seleccion|facilit|especifi|escrib|introdu"
                r"|ingres|respond|compart|adjunt|descri|verifi|aclar|inform|sub[ae])"
            ),
        ),
        ("necesit", r"\bnecesit(?:o|amos|aría)\b(?!.*\b(?:un momento|comprobar|más tiempo)\b)"),
        ("me", r"\b(?:díga|indíque|avíse|aví?sa|envíe|envía|confírme|hága|facilíte|cuénte|cuénta|di|respónda)me\b"),
        ("elija", ""),
        ("seleccione", ""),
        ("confirme", r"\b(?:una vez que|cuando|en cuanto|si)\b"),
    ),
    courtesy=(("", r"^(?:gracias|muchas gracias|de nada|perfecto|claro|buen)"),),
)

_ITALIAN = language(
    answers=r"(?:sì|perché|certo|certamente)\b|no[,.]",
    nothing=(("attend", ""), ("tenga presente", ""), ("un momento", ""), ("un attimo", "")),
    closing=(
        ("altro", r"\b(?:qualcos'altro|qualcosa d'altro|(?:in|con|per|serve|c'è) altro)\b.*\?"),
        ("altre domande", r"\?"),
    ),
    question=(
        (
            "?",
            r"\b(?:lei|suo|sua|suoi|sue|le|tu|tuo|tua|ti|vuole|vuoi|desidera|preferi\w+|può|puoi|potrebbe|vorrebbe|devo)\b",
        ),
    ),
    request=(
        (
            "per favore",
            r"(?:forni|conferm|indic|dica|scel|scegl|invi|mand|selezion|inseri|specific|rispond|comunic|condivid)",
        ),
        ("mi ", r"\bmi (?:faccia sapere|dica|indichi|fornisca|confermi|invii|mandi|comunichi|serv\w+|può dire)\b"),
        ("fammi sapere", ""),
        ("dimmi", ""),
        ("confermi", r"^confermi\b|\b(?:quando|appena|se|una volta che) (?:lei )?confermi"),
        ("ho ", r"\bho (?:ancora )?bisogno d"),
    ),
    courtesy=(("", r"^(?:grazie|prego|buon|perfetto|certo)"),),
)

_PORTUGUESE = language(
    answers=r"(?:sim|porque|claro|com certeza)\b|não[,.]",
    nothing=(("aguard", ""), ("observe que", ""), ("um momento", "")),
    closing=(("mais alguma", r"\?"), ("algo mais", r"\?"), ("outra coisa", r"\?"), ("outra dúvida", r"\?")),
    question=(
        (
            "?",
            r"\b(?:vocês?|seus?|suas?|lhe|te|tu|teu|tua|deseja\w*|quer|queres|prefer\w+|gostaria\w*|poderia\w*|pode\w*|devo)\b",
        ),
    ),
    request=(
        (
            "por favor",
            r"(?:inform|confirm|forne|envi|mand|escolh|selecion|indiqu|diga|digit|respond|especifi|compartilh|descrev|verifi)",
        ),
        ("preciso", r"\bpreciso (?:ainda |apenas |só |também )?(?:d[aeo]s?|que|saber|confirmar)\b(?! um)"),
        ("precisamos d", ""),
        ("me ", r"\bme (?:diga|informe|avise|envie|confirme|mande|passe|fale)\b"),
        ("-me", r"\b(?:diga|informe|avise|envie|confirme)-me\b"),
        ("você", r"\b(?:assim que|depois que|quando|se) você (?:confirm|envi|aprov|inform)"),
    ),
    courtesy=(("", r"^(?:obrigad|de nada|perfeito|claro|boa|bom)"),),
)

_DUTCH = language(
    answers=r"(?:ja|nee|omdat|natuurlijk)\b",
    nothing=(("ogenblik", ""), ("let op", ""), ("een moment", "")),
    closing=(
        ("nog iets", r"\?"),
        ("anders", r"\b(?:iets|ergens) anders\b.*\?"),
        ("nog vragen", r"\?"),
        ("nog meer", r"\?"),
    ),
    question=(("?", r"\b(?:uw?|je|jij|jou|jouw|jullie|zal ik|moet ik|kan ik)\b"),),
    request=(
        ("alstublieft", ""),
        ("alsjeblieft", ""),
        ("gelieve", ""),
        ("weten", r"\blaat (?:het )?(?:me|mij|ons) (?:dan |even )?weten\b|\bik wil graag weten\b"),
        ("nodig", r"\b(?:ik heb|heb ik|we hebben|hebben we)\b.*\bnodig\b(?<!tijd nodig)"),
        ("geef ", r"^(?:geef|stuur|kies|vul|vertel|bevestig) "),
        ("zodra u", r"\b(?:bevestig|stuur|akkoord)"),
    ),
    courtesy=(("", r"^(?:dank|bedankt|graag gedaan|prima|fijne)"),),
)

_POLISH = language(
    answers=r"(?:tak|nie|ponieważ|bo|oczywiście)\b",
    nothing=(("czekać", ""), ("pamiętać", ""), ("chwil", "")),
    closing=(("jeszcze", r"\b(?:w czymś|coś|czymś|jakieś|inne)\b.*\?"), ("inne pytania", r"\?")),
    question=(
        ("?", r"\b(?:pani?|pana|państw[oau]|tw[oó]j\w*|ci|chces\w+|chciał\w*|może\w*|woli\w*|życzy\w*|czy mam|mam)\b"),
    ),
    request=(
        (
            "prosz",
            (
                r"\bproszę (?:o )?(?:podać|potwierdzi|wybra|wskaza|przesła|wysła|napisa|odpowiedzie|wpisa|określi|podanie|przesłanie"
                r"|powiedzie|udostępni|opisa)"
            ),
        ),
        ("potrzebuj", r"\bpotrzebuj(?:ę|emy)\b"),
        ("zna", r"\b(?:daj|dać|dajcie) (?:mi )?znać\b"),
        ("", r"^(?:podaj|potwierdź|wybierz|napisz|wyślij|powiedz|odpowiedz)\b"),
    ),
    courtesy=(("", r"^(?:dziękuj|miłe)"),),
)

_TURKISH = language(
    answers=r"(?:evet|hayır|çünkü)\b",
    nothing=(("bekleyin", ""), ("unutmayın", "")),
    closing=(("başka", r"\?"),),
    question=(("?", r"\b(?:siz\w*|m[iıuü]s[iıuü]n[iıuü]z|ister\w*|istiyor\w*)\b"),),
    request=(
        ("lütfen", r"(?:paylaş|belirt|onayla|gir|seç|gönder|yaz|söyle|ilet|yanıtla|bildir|doğrula)"),
        ("ihtiyacım var", ""),
    ),
    courtesy=(("", r"^(?:teşekkür|iyi günler)"),),
)

_RUSSIAN = language(
    answers=r"(?:да|нет|потому что|конечно)\b",
    nothing=(("подождите", ""), ("обратите внимание", ""), ("ожидайте", "")),
    closing=(
        ("ещё", r"(?:помочь|вопрос|чем-|что-).*\?|\?.*(?:помочь)|(?:если|дайте знать).*(?:вопрос|понадоб)"),
        ("еще", r"(?:помочь|вопрос|чем-|что-).*\?"),
        ("остались вопросы", r"\?"),
    ),
    question=(("?", r"\b(?:вы|вам|вас|ваш\w*|ты|тебе|тво\w+|хотите|можете|желаете|предпочитаете|мне)\b"),),
    request=(
        (
            "те",
            (
                r"\b(?:укажите|сообщите|подтвердите|уточните|выберите|напишите|пришлите|введите|отправьте|предоставьте|назовите|ответьте"
                r"|скажите|опишите|расскажите|загрузите|дайте знать|поделитесь|прикрепите)\b"
            ),
        ),
        ("", r"^(?:укажи|подтверди|выбери|напиши|пришли|скажи|уточни)\b"),
        ("нуж", r"\b(?:мне|нам) .*\bнуж(?:ен|на|но|ны)\b(?!.*(?:минут|время))|\bнуж(?:ен|на|но|ны) ваш"),
        ("как только вы", r"подтверд|сообщ|пришл|отправ"),
    ),
    courtesy=(("", r"^(?:спасибо|пожалуйста[.!]|хорошего|рад)"),),
)

_CHINESE = language(
    answers=r"(?:是的|不是|因为|可以|当然|对)",
    nothing=(("稍等", ""), ("注意", r"请.{0,2}注意"), ("耐心", "")),
    closing=(
        ("还有", r"还有(?:什么|其他|其它|别的|任何).*(?:帮|需要|问题|吗)"),
        ("其他", r"(?:如果|如有|若).*(?:问题|需要|疑问)"),
        ("任何", r"(?:如果|如有|若).*(?:问题|需要|疑问)"),
    ),
    question=(
        ("？", r"您|你|要我|需要我|我(?:可以|能|该)|怎么样|(?:可以|好|行)[吗么]"),
        ("?", r"您|你|要我|需要我|我(?:可以|能|该)|怎么样|(?:可以|好|行)[吗么]"),
        ("请问", ""),
        ("", r"(?:吗|多少|哪[个些里天位种]|什么|几[个位点号]|怎么样)呢?[。！.]?$"),
    ),
    request=(
        (
            "请",
            (
                r"请(?:您|你)?(?:先|再|直接|尽快)?(?:提供|告诉|告知|确认|选择|输入|回复|说明|补充|上传|填写|发送|描述|指定|给出|回答|核对|核实"
                r"|发给|分享|选|列出|明确|允许|授权|批准)"
            ),
        ),
        ("麻烦", r"麻烦(?:您|你).*(?:提供|告诉|告知|确认|发|填|输入|核对|说|选)"),
        ("需要", r"(?:我|我们|还)(?:还)?需要(?:您|你|知道|了解|以下|更多)"),
    ),
    courtesy=(("", r"^(?:谢谢|感谢|祝您|好的)"),),
)

_JAPANESE = language(
    answers=r"(?:はい|いいえ|なぜなら)",
    nothing=(("お待ち", ""), ("ご了承", ""), ("お気軽", ""), ("ご注意", "")),
    closing=(("他に", r"か|ください"), ("ほかに", r"か|ください"), ("その他", r"か[。？?]|ください")),
    question=(("か", r"(?:ます|です|でしょう|ません|ましょう|よろしい|いい)か[。？?]*$"), ("？", r"ご|お")),
    request=(
        (
            "ください",
            (
                r"(?:教えて|知らせ|聞かせ|入力|記入|選び|選択|返信|提供|送り|送って|指定|申し付け|回答|添付|アップロード|書き|書いて|提示|共有"
                r"|伝え|答え|指示|承認).*ください"
            ),
        ),
        ("必要です", r"(?:番号|情報|日付|日時|お名前|住所|許可|承認).*必要です"),
    ),
    courtesy=(("", r"^(?:ありがとう|かしこまりました|承知)"),),
)

_KOREAN = language(
    answers=r"(?:네|예|아니요|왜냐하면)",
    nothing=(("기다려", ""), ("참고", ""), ("감사", "")),
    closing=(
        ("더 ", r"(?:도와|필요|궁금|도움).*(?:\?|까요|나요|주세요)"),
        ("다른 ", r"(?:도움|질문|문의|필요).*(?:\?|까요|나요|주세요)"),
    ),
    question=(("요", r"(?:까요|나요|가요|래요|겠어요)[.?]*$"), ("까", r"(?:습니까|입니까|십니까)[.?]*$")),
    request=(
        (
            "주",
            (
                r"(?:알려|말씀해|입력해|선택해|확인해|제공해|보내|적어|답변해|답해|공유해|골라|첨부해|올려|작성해|설명해|지정해|승인해) ?"
                r"(?:주세요|주십시오|주시기|주시면)"
            ),
        ),
        ("필요합니다", r"(?:번호|정보|날짜|성함|주소|확인|승인|동의).*필요합니다"),
    ),
    courtesy=(("", r"^(?:감사|좋은 하루)"),),
)

_ARABIC = language(
    answers=r"(?:نعم|لا|لأن)\b",
    nothing=(("الانتظار", ""),),
    closing=(("آخر", r"؟"), ("أخرى", r"؟")),
    question=(("؟", r"\b(?:هل|ترغب|تريد|تود|تفضل)|\w+ك\b"),),
    request=(
        (
            "رج",
            r"(?:يرجى|الرجاء|أرجو) (?:تزويد|تأكيد|اختيار|إدخال|إرسال|تحديد|إخبار|ذكر|تقديم|مشاركة|كتابة|الرد|توضيح|إعلام)",
        ),
        ("أحتاج", ""),
        ("أخبرني", ""),
    ),
    courtesy=(("", r"^شكر"),),
)

_SCRIPTS: Final = (
    (Pattern(r"[\u3040-\u30ff]"), _JAPANESE),
    (Pattern(r"[\uac00-\ud7af]"), _KOREAN),
    (Pattern(r"[\u4e00-\u9fff]"), _CHINESE),
    (Pattern(r"[\u0400-\u04ff]"), _RUSSIAN),
    (Pattern(r"[\u0600-\u06ff]"), _ARABIC),
)

# Words that are frequent in one language and in none of the others of the same script.
_COMMON: Final = tuple(
    (frozenset(words.split()), known)
    for words, known in (
        (
            (
                "the you your of and for i can please have with it that would are what my this be if which how let know any"
                " at from there there's found was has its it's"
            ),
            ENGLISH,
        ),
        ("bitte sie ihre ihren ihnen ich und der das ist nicht wir mir ein eine für soll kann sonst", _GERMAN),
        ("vous votre vos veuillez est le les une je à et des merci pas nous avez quel quelle puis", _FRENCH),
        (
            "el usted su por para que es está una qué cuál necesito quiere dígame avíseme envíame puedo si algo más hay",
            _SPANISH,
        ),
        ("il di che è favore gli della del una suo sua mi può ho quale confermi posso", _ITALIAN),
        ("você os seu sua não por um uma para é da qual que preciso deseja ajudar com", _PORTUGUESE),
        ("uw het een de en ik voor kunt wilt wat zal alstublieft dat heb weten", _DUTCH),
        ("proszę się nie jest czy numer jaki mi daj potrzebuję dla mogę mam", _POLISH),
        ("lütfen ve bir bu için nedir numaranız misiniz size", _TURKISH),
    )
)


def language_of(text: str) -> Language:
    """By script, then by common words of the last few sentences; English where there is no telling."""
    end = text[-400:].lower()
    if not end.isascii():
        for script, known in _SCRIPTS:
            if script.search(end):
                return known
    if " you" in end or " the " in end:
        return ENGLISH
    words = set(end.replace("¿", "").replace(",", "").replace(".", "").replace("-", " ").split())
    return max(_COMMON, key=lambda common: len(common[0] & words))[1]
